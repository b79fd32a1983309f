#pragma once
// refit_scales and descend_codes: two monotone improvements of a coded linear under its Gram matrix.
#include "kernels/exec/exec.h"
#include "kernels/grids/coded_view.h"
namespace fewbit {
// Both lower the loss tr((T - Q) H (T - Q)^T) of a linear whose values are Q, row by row, on integer grids (symmetric
// or not, consecutive groups or group_of, out_group 1). H is what GPTQ's objective has for the inputs (Frantar et al.,
// 2022, section 3); moving one variable at a time to its optimum is coordinate descent.
struct RefineArgs {
  ConstTensorView target{};        // T: [out, in] f32, what the codes should reproduce
  ConstTensorView h{};             // H: [in, in]  f32, symmetric, both halves, damped
  DType scale_dtype = DType::f16;  // refit_scales rounds its scales to it
};
// refit_scales: with the levels C of the codes fixed, the best scales s of a row solve the normal equations
//     (C^T H C) s = C^T H t     in f64
//   They are rounded to scale_dtype and kept where the loss of the row fell. A row whose equations cannot be factored
//   keeps its scales, and a group whose levels are all zero keeps its own.
//     q  codes, zeros, group_of are read; scales are read and overwritten
// descend_codes: one cyclic pass over the columns; each code is set to the best one, all others as they are.
//     q  scales, zeros, group_of are read; codes are read and overwritten
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
}
inline void refit_scales(Exec& ex, const RefineArgs& a, const MutableCodedView& q) {
  require_refinable(a, q);
  pick(ex, &cpu::refit_scales, FEWBIT_CUDA_OP(refit_scales))(ex, a, q);
}
inline void descend_codes(Exec& ex, const RefineArgs& a, const MutableCodedView& q) {
  require_refinable(a, q);
  pick(ex, &cpu::descend_codes, FEWBIT_CUDA_OP(descend_codes))(ex, a, q);
}
}  // namespace fewbit
