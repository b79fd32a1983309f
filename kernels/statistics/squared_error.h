#pragma once
#include "kernels/exec/exec.h"
namespace fewbit {
// error[o] = sum_i (a[o, i] - b[o, i])^2 in f64; b.data == nullptr counts as zero.
//   a, b [out, in] f32 · error [out] f64; overwritten
namespace cpu {
void squared_error(Exec&, ConstTensorView a, ConstTensorView b, TensorView error);
}
namespace cuda {
void squared_error(Exec&, ConstTensorView a, ConstTensorView b, TensorView error);
}
inline void squared_error(Exec& ex, ConstTensorView a, ConstTensorView b, TensorView error) {
  pick(ex, &cpu::squared_error, FEWBIT_CUDA_OP(squared_error))(ex, a, b, error);
}
}  // namespace fewbit
