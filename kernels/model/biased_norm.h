#pragma once
// biased_norm: layer normalisation with weight and bias (Ba, Kiros and Hinton, 2016).
#include "kernels/exec/exec.h"
namespace fewbit {
// y[r, c] = (x[r, c] - mean_c x[r, c]) / sqrt(var_c x[r, c] + eps) * weight[c] + bias[c], the variance that of all
// values (not of a sample); computed in f32, rounded once.
//   x, y          [rows, cols]  f32 | bf16, alike; y is overwritten and may be x
//   weight, bias  [cols]        the dtype of x
namespace cpu {
void biased_norm(Exec&, ConstTensorView x, ConstTensorView weight, ConstTensorView bias, float eps, TensorView y);
}
namespace cuda {
void biased_norm(Exec&, ConstTensorView x, ConstTensorView weight, ConstTensorView bias, float eps, TensorView y);
}
inline void biased_norm(Exec& ex, ConstTensorView x, ConstTensorView weight, ConstTensorView bias, float eps,
                        TensorView y) {
  FEWBIT_ASSERT(y.shape == x.shape && y.dtype == x.dtype && weight.dtype == x.dtype && bias.dtype == x.dtype);
  FEWBIT_ASSERT(weight.numel() == x.cols() && bias.numel() == x.cols());
  pick(ex, &cpu::biased_norm, FEWBIT_CUDA_OP(biased_norm))(ex, x, weight, bias, eps, y);
}
}  // namespace fewbit
