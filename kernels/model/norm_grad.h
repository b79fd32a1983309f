#pragma once
// rms_norm_grad: the gradient of rms_norm (kernels/model/norm.h) with respect to its input.
#include "kernels/exec/exec.h"
namespace fewbit {
// With n = 1 / sqrt(mean_c x_c^2 + eps) and z = dy * (weight + weight_offset), for every row:
//   dx_c = beta * dx_c + n z_c - n^3 x_c mean_c(z_c x_c)
//   x, dy   [rows, cols]  f32
//   weight  [cols]        f32
//   dx      [rows, cols]  f32; beta 0 overwrites it, and it may be dy then; beta 1 adds to it
namespace cpu {
void rms_norm_grad(Exec&, ConstTensorView x, ConstTensorView weight, float eps, float weight_offset, ConstTensorView dy,
                   float beta, TensorView dx);
}
namespace cuda {
void rms_norm_grad(Exec&, ConstTensorView x, ConstTensorView weight, float eps, float weight_offset, ConstTensorView dy,
                   float beta, TensorView dx);
}
inline void rms_norm_grad(Exec& ex, ConstTensorView x, ConstTensorView weight, float eps, float weight_offset,
                          ConstTensorView dy, float beta, TensorView dx) {
  pick(ex, &cpu::rms_norm_grad, FEWBIT_CUDA_OP(rms_norm_grad))(ex, x, weight, eps, weight_offset, dy, beta, dx);
}
}  // namespace fewbit
