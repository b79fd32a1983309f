#pragma once
// The factorisation behind GPTQ, and the solution of a system by the same factor.
#include <algorithm>

#include "kernels/exec/exec.h"
#include "kernels/exec/panel_share.h"
#include "src/core/wide_cut.h"
namespace fewbit {
// H + lambda I = R R^T with R upper triangular, by one Cholesky factorisation of the index-reversed matrix. U = R^-1 is
// the Cholesky factor of the inverse that the published algorithm uses (Frantar et al., GPTQ, 2022, section 4, step 3),
// so no inverse is ever formed.
//   h       [n, n] f32, symmetric, both halves; not changed, unless r is the same memory
//   lambda  damping, in units of h
//   r       [n, n] f32; overwritten, zero below the diagonal
// Failure is a status, not an exception: `pivot` is the order, from 1, of the leading minor of the reversed matrix that
// was not positive definite; 0 on success. An entry that is not finite gives pivot 1. r is undefined then.
//   share   the processes that factor h together on the CPU, each with all of h; collective, and r is everybody's. On
//           CUDA every process makes it by itself
enum class Precision : uint8_t { f32, f64 };  // of the factorisation; h and r are f32
struct [[nodiscard]] FactorStatus {
  int64_t pivot = 0;
  bool ok() const { return pivot == 0; }
};
namespace cpu {
FactorStatus factorize(Exec&, ConstTensorView h, float lambda, Precision, TensorView r, const PanelShare&);
}
namespace cuda {
FactorStatus factorize(Exec&, ConstTensorView h, float lambda, Precision, TensorView r, const PanelShare&);
}
inline FactorStatus factorize(Exec& ex, ConstTensorView h, float lambda, Precision p, TensorView r,
                              const PanelShare& share = {}) {
  return pick(ex, &cpu::factorize, FEWBIT_CUDA_OP(factorize))(ex, h, lambda, p, r, share);
}

// The weight that best reproduces the unquantized output from the quantized input, in closed form (the asymmetric
// calibration of GPTAQ: Li et al., 2025):
//   target = w + share (w (cross - gram) + more) (gram + lambda I)^-1
//   cross = sum x_full x_quantized^T, gram = sum x_quantized x_quantized^T over the same tokens
//   more  = sum e x_quantized^T, with e [out] what the outputs are to make good besides; or nothing
// solved in f64. A zero on the diagonal of gram, an input never seen, counts as 1 in the inverse; the shift of its
// column is zero then. On CUDA the system is factored in f64, and products with w and with the factor are of bf16 terms
// (kernels/device/split_product.cuh), whose roundings are some 2^-17 of the shift.
//   w            [out, n] f32
//   cross, gram  [n, n]   f32
//   more         [out, n] f32, or data == nullptr
//   share        1 for all of the shift
//   target       [out, n] f32; overwritten, untouched when the factorisation fails
//   panels       the processes that factor gram together (on CUDA where it is wide: panel_factor.cuh); each may have
//                rows of w of its own
//   r            null, or what becomes the factor of gram + lambda I as factorize() makes it in f64, [n, n] f32, where
//                the op has it: on CUDA, which solves by it
// Returns the status of the factorisation.
namespace cpu {
FactorStatus shift_targets(Exec&, ConstTensorView w, ConstTensorView cross, ConstTensorView gram, float lambda,
                           ConstTensorView more, float share, TensorView target, const PanelShare&, Tensor* r);
}
namespace cuda {
FactorStatus shift_targets(Exec&, ConstTensorView w, ConstTensorView cross, ConstTensorView gram, float lambda,
                           ConstTensorView more, float share, TensorView target, const PanelShare&, Tensor* r);
}
// The same in two steps, for linears that share an input: M = share (cross - gram) (gram + lambda I)^-1, once, and then
// target = w + w M for each of them.
//   m  [n, n] f32; overwritten, undefined when the factorisation fails
namespace cpu {
FactorStatus shift_matrix(Exec&, ConstTensorView cross, ConstTensorView gram, float lambda, float share, TensorView m,
                          Tensor* r);
void apply_shift(Exec&, ConstTensorView w, ConstTensorView m, TensorView target);
}  // namespace cpu
namespace cuda {
FactorStatus shift_matrix(Exec&, ConstTensorView cross, ConstTensorView gram, float lambda, float share, TensorView m,
                          Tensor* r);
void apply_shift(Exec&, ConstTensorView w, ConstTensorView m, TensorView target);
}  // namespace cuda
inline FactorStatus shift_matrix(Exec& ex, ConstTensorView cross, ConstTensorView gram, float lambda, float share,
                                 TensorView m, Tensor* r = nullptr) {
  return pick(ex, &cpu::shift_matrix, FEWBIT_CUDA_OP(shift_matrix))(ex, cross, gram, lambda, share, m, r);
}
inline void apply_shift(Exec& ex, ConstTensorView w, ConstTensorView m, TensorView target) {
  pick(ex, &cpu::apply_shift, FEWBIT_CUDA_OP(apply_shift))(ex, w, m, target);
}
// Where the second way pays: on CUDA, up to inputs so wide that M takes 256 MiB. Their linears together have more
// outputs than inputs in today's models, and wider inputs (those of `down`) have one linear, with fewer outputs.
inline bool shares_shift(Device::Kind kind, int64_t n) { return kind == Device::cuda && n <= 8192; }

inline FactorStatus shift_targets(Exec& ex, ConstTensorView w, ConstTensorView cross, ConstTensorView gram,
                                  float lambda, ConstTensorView more, float share, TensorView target,
                                  const PanelShare& panels = {}, Tensor* r = nullptr) {
  return pick(ex, &cpu::shift_targets, FEWBIT_CUDA_OP(shift_targets))(ex, w, cross, gram, lambda, more, share, target,
                                                                      panels, r);
}

// Columns that the solver on CUDA takes at a time: its inverted diagonal blocks are [kSolveCols, kSolveCols]. Rows that
// it solves for at once, and whose terms are there: 512 MiB of them at most.
inline constexpr int64_t kSolveCols = 1024;
// Columns of a strip of M in products w M on CUDA: those of some 2,000 rows fill the multiprocessors.
inline constexpr int64_t kShiftCols = 2048;
inline int64_t shift_rows(int64_t out, int64_t n) {
  return std::min(out, std::clamp<int64_t>((int64_t{1} << 27) / n / 256 * 256, 256, 4096));
}

// Bytes that the ops take at their peak besides their arguments. On the CPU the f64 system of a shift alone is whole.
// On CUDA the system (8 N, with N = n^2) becomes the f32 factor (4 N), and then terms of that (4 N) are there and those
// of rows (4 n each); cuSOLVER's room comes on top (factor_cuda.cu). Where linears share M (4 N), it is counted here.
inline int64_t factor_bytes(int64_t n, Precision p) { return p == Precision::f32 ? 0 : 8 * n * n; }
inline int64_t shift_bytes(Device::Kind kind, int64_t out, int64_t n) {
  if (kind == Device::cpu) return 8 * n * n + square_cut_bytes(kind, out, n);
  const int64_t square = n * n, shared = shares_shift(kind, n) ? 4 * square : 0;
  const int64_t blocks = (n + kSolveCols - 1) / kSolveCols * kSolveCols * kSolveCols;
  const int64_t making = 12 * square + 12 * blocks + 2 * kSolveCols * n;
  const int64_t solving = 8 * square + 4 * blocks + 4 * n * (shift_rows(std::max(out, shared ? n : 0), n) + kShiftCols);
  return shared + std::max(making, solving);
}
}  // namespace fewbit
