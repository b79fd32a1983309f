#pragma once
// rms_norm: root mean square layer normalisation (Zhang and Sennrich, 2019). layer_norm: with the mean taken away (Ba,
// Kiros and Hinton, 2016), with or without a bias.
#include "kernels/exec/exec.h"
namespace fewbit {
// y[r, c] = x[r, c] / sqrt(mean_c x[r, c]^2 + eps) * (weight[c] + weight_offset); computed in f32, rounded once.
//   x, y    [rows, cols]  f32 | bf16, alike; y is overwritten and may be x
//   weight  [cols]        the dtype of x
//   weight_offset         0, or 1 for the (1 + w) norms of the Gemma family
// A per-head norm is the same op on x viewed as [tokens * heads, head_dim].
// layer_norm: y[r, c] = (x[r, c] - mean_c x[r, c]) / sqrt(mean_c (x[r, c] - mean)^2 + eps) * weight[c] + bias[c]; as
// above.
//   bias    [cols]        the dtype of x; null where there is none
namespace cpu {
void rms_norm(Exec&, ConstTensorView x, ConstTensorView weight, float eps, float weight_offset, TensorView y);
void layer_norm(Exec&, ConstTensorView x, ConstTensorView weight, const ConstTensorView* bias, float eps, TensorView y);
}  // namespace cpu
namespace cuda {
void rms_norm(Exec&, ConstTensorView x, ConstTensorView weight, float eps, float weight_offset, TensorView y);
void layer_norm(Exec&, ConstTensorView x, ConstTensorView weight, const ConstTensorView* bias, float eps, TensorView y);
}  // namespace cuda
inline void rms_norm(Exec& ex, ConstTensorView x, ConstTensorView weight, float eps, float weight_offset,
                     TensorView y) {
  pick(ex, &cpu::rms_norm, FEWBIT_CUDA_OP(rms_norm))(ex, x, weight, eps, weight_offset, y);
}
inline void layer_norm(Exec& ex, ConstTensorView x, ConstTensorView weight, const ConstTensorView* bias, float eps,
                       TensorView y) {
  FEWBIT_ASSERT(weight.numel() == x.cols() && weight.dtype == x.dtype && y.dtype == x.dtype && y.shape == x.shape);
  FEWBIT_ASSERT(bias == nullptr || (bias->numel() == x.cols() && bias->dtype == x.dtype));
  pick(ex, &cpu::layer_norm, FEWBIT_CUDA_OP(layer_norm))(ex, x, weight, bias, eps, y);
}
}  // namespace fewbit
