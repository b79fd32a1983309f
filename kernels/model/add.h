#pragma once
// add: the residual sum. scale_by: all values times one.
#include "kernels/exec/exec.h"
namespace fewbit {
// add: x += h, computed in f32, rounded once.   h, x: the same shape and dtype, f32 | bf16; x in place
// scale_by: x *= factor[0], likewise.           factor: one f32 on the device
namespace cpu {
void add(Exec&, ConstTensorView h, TensorView x);
void scale_by(Exec&, ConstTensorView factor, TensorView x);
}  // namespace cpu
namespace cuda {
void add(Exec&, ConstTensorView h, TensorView x);
void scale_by(Exec&, ConstTensorView factor, TensorView x);
}  // namespace cuda
inline void add(Exec& ex, ConstTensorView h, TensorView x) { pick(ex, &cpu::add, FEWBIT_CUDA_OP(add))(ex, h, x); }
inline void scale_by(Exec& ex, ConstTensorView factor, TensorView x) {
  FEWBIT_ASSERT(factor.numel() == 1 && factor.dtype == DType::f32);
  pick(ex, &cpu::scale_by, FEWBIT_CUDA_OP(scale_by))(ex, factor, x);
}
}  // namespace fewbit
