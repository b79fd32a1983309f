#pragma once
// add: the residual sum. scale_by: all values times one, or times that of their column.
#include "kernels/exec/exec.h"
namespace fewbit {
// add: x += factor * h, computed in f32, rounded once.   h, x: the same shape and dtype, f32 | bf16; x in place
// scale_by: x *= factor, likewise.                       factor: f32 on the device, one or [x.cols()]
namespace cpu {
void add(Exec&, ConstTensorView h, TensorView x, float factor);
void scale_by(Exec&, ConstTensorView factor, TensorView x);
}  // namespace cpu
namespace cuda {
void add(Exec&, ConstTensorView h, TensorView x, float factor);
void scale_by(Exec&, ConstTensorView factor, TensorView x);
}  // namespace cuda
inline void add(Exec& ex, ConstTensorView h, TensorView x, float factor = 1) {
  pick(ex, &cpu::add, FEWBIT_CUDA_OP(add))(ex, h, x, factor);
}
inline void scale_by(Exec& ex, ConstTensorView factor, TensorView x) {
  FEWBIT_ASSERT((factor.numel() == 1 || factor.numel() == x.cols()) && factor.dtype == DType::f32);
  pick(ex, &cpu::scale_by, FEWBIT_CUDA_OP(scale_by))(ex, factor, x);
}
}  // namespace fewbit
