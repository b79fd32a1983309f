#pragma once
#include "kernels/exec/exec.h"
namespace fewbit {
// Two monotone improvements of a coded linear under the loss tr((T - Q) H (T - Q)^T); symmetric or asymmetric integer
// grids, consecutive groups or group_of.
//   refit_scales: with the codes C fixed, each row's best scales solve (C^T H C) s = C^T H t (f64), are rounded to
//     scale_dtype and kept only where the row's loss fell.
//   descend_codes: one cyclic pass over the columns; every code is set to its exact optimum given all others.
struct RefineArgs {
  ConstTensorView target{};    // [out, in] f32: what the codes should reproduce
  ConstTensorView h{};         // [in, in]  f32, damped
  ConstTensorView zeros{};     // [out, G]  u8 or null
  ConstTensorView group_of{};  // [in] i32 or null
  int bits = 4;
  int64_t group = 128;
  DType scale_dtype = DType::f16;
};
namespace cpu {
void refit_scales(Exec&, const RefineArgs&, ConstTensorView codes, TensorView scales);
void descend_codes(Exec&, const RefineArgs&, ConstTensorView scales, TensorView codes);
}  // namespace cpu
namespace cuda {
void refit_scales(Exec&, const RefineArgs&, ConstTensorView codes, TensorView scales);
void descend_codes(Exec&, const RefineArgs&, ConstTensorView scales, TensorView codes);
}  // namespace cuda
inline void refit_scales(Exec& ex, const RefineArgs& a, ConstTensorView codes, TensorView scales) {
  pick(ex, &cpu::refit_scales, FEWBIT_CUDA_OP(refit_scales))(ex, a, codes, scales);
}
inline void descend_codes(Exec& ex, const RefineArgs& a, ConstTensorView scales, TensorView codes) {
  pick(ex, &cpu::descend_codes, FEWBIT_CUDA_OP(descend_codes))(ex, a, scales, codes);
}
}  // namespace fewbit
