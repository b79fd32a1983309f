#pragma once
// refit_scales and descend_codes: two monotone improvements of a coded linear under its Gram matrix.
#include "kernels/exec/exec.h"
#include "kernels/grids/coded_view.h"
#include "kernels/quantize/column_tiles.h"
#include "src/core/wide_cut.h"
namespace fewbit {
// Both lower the loss tr((T - Q) H (T - Q)^T) of a linear whose values are Q, row by row, on integer grids (symmetric
// or not, consecutive groups or group_of, out_group 1). H is what GPTQ's objective has for the inputs (Frantar et al.,
// 2022, section 3); moving one variable at a time to its optimum is coordinate descent.
struct RefineArgs {
  ConstTensorView target{};        // T: [out, in] f32, what the codes should reproduce
  ConstTensorView h{};             // H: [in, in]  f32, symmetric, both halves, damped
  DType scale_dtype = DType::f16;  // refit_scales rounds its scales to it
  bool two_of_four = false;        // 2:4 sparsity (kernels/grids/two_of_four.h), which the codes have and keep
};
// refit_scales: with the levels C of the codes fixed, the best scales s of a row solve the normal equations
//     (C^T H C) s = C^T H t     on the CPU in f64; on CUDA as (C^T H C) (s - old) = C^T H (t - q), see refit_cuda.cu
//   They are rounded to scale_dtype and kept where the loss of the row fell. A row whose equations cannot be factored
//   keeps its scales, and a group whose levels are all zero keeps its own.
//     q  codes, zeros, group_of are read; scales are read and overwritten
// descend_codes: one cyclic pass over the columns; each code is set to the best one, all others as they are.
//     q  scales, zeros, group_of are read; codes are read and overwritten
//   With two_of_four a zero beside two others that are not may take the place of one of them: the exchange that gains
//   most, the level of the new one being the best after the old one is gone. Symmetric, groups of whole quads.
namespace cpu {
void refit_scales(Exec&, const RefineArgs&, const MutableCodedView& q);
void descend_codes(Exec&, const RefineArgs&, const MutableCodedView& q);
}  // namespace cpu
namespace cuda {
void refit_scales(Exec&, const RefineArgs&, const MutableCodedView& q);
void descend_codes(Exec&, const RefineArgs&, const MutableCodedView& q);
}  // namespace cuda
inline void require_refinable(const RefineArgs& a, const MutableCodedView& q) {
  FEWBIT_ASSERT(q.codes.shape == a.target.shape && q.grid == Grid::integer && q.out_group == 1);
  FEWBIT_ASSERT(a.h.rows() == a.target.cols() && a.h.cols() == a.target.cols());
  FEWBIT_ASSERT(!a.two_of_four || (!q.zeros.data && !q.group_of.data && q.group % 4 == 0 && a.target.cols() % 4 == 0));
}
inline void refit_scales(Exec& ex, const RefineArgs& a, const MutableCodedView& q) {
  require_refinable(a, q);
  pick(ex, &cpu::refit_scales, FEWBIT_CUDA_OP(refit_scales))(ex, a, q);
}
inline void descend_codes(Exec& ex, const RefineArgs& a, const MutableCodedView& q) {
  require_refinable(a, q);
  pick(ex, &cpu::descend_codes, FEWBIT_CUDA_OP(descend_codes))(ex, a, q);
}

// How refit_scales is cut. Of H only the rows of one group are taken apart or wide, or of large groups a strip of their
// columns (refit_strip: its values). A row costs its levels, products and, on the CPU, targets, and its equations;
// kRefitBytes of rows are in work (on CUDA twice that, so that a product fills the GPU), and on the CPU never less than
// a block of 16 for every thread. On CUDA all rows have their right sides first, by (T - Q) H whole, in strips of
// kRefitCols columns of H.
inline constexpr int64_t kRefitRows = 16, kRefitCols = 2048;
inline constexpr int64_t kRefitBytes = int64_t{1} << 28;
inline int64_t refit_row_bytes(Device::Kind kind, int64_t n, int64_t groups) {
  return (kind == Device::cuda ? 6 : 20) * n + 8 * groups * (groups + 1) + (kind == Device::cuda ? 20 : 0);
}
inline int64_t refit_strip(Device::Kind kind, int64_t width, int64_t n) {
  return width * WideCut{.n = n, .cols = strip_columns(kind, width, n)}.widest();
}
inline int64_t refit_rows(Device::Kind kind, int64_t out, int64_t n, int64_t groups) {
  const int64_t bytes = kind == Device::cuda ? 2 * kRefitBytes : kRefitBytes;
  const int64_t fit = bytes / refit_row_bytes(kind, n, groups) / kRefitRows * kRefitRows;
  return std::min(out, std::max(fit, kRefitRows * (kind == Device::cuda ? 1 : thread_count())));
}
// Bytes that a round of refit_scales and descend_codes takes at its peak besides its arguments, for groups of `group`
// columns.
inline int64_t refine_bytes(Device::Kind kind, int64_t out, int64_t n, int64_t group) {
  const int64_t groups = (n + group - 1) / group, rows = refit_rows(kind, out, n, groups);
  const int64_t width = std::min(group, n), strip = refit_strip(kind, width, n);
  if (kind == Device::cpu) return rows * refit_row_bytes(kind, n, groups) + 8 * strip;
  const auto terms = [&](int64_t cols) { return 4 * n * (out + cols); };  // of T - Q and of a strip of H
  const int64_t systems = rows * (refit_row_bytes(kind, n, groups) + 6 * width) + 6 * strip;
  const int64_t refit = std::max(terms(std::min(n, kRefitCols)) + 4 * out * n, systems) + 8 * out * groups + 12 * n;
  return std::max(refit, terms(kStripCols) + 4 * out * kStripCols + 4 * n);
}
}  // namespace fewbit
