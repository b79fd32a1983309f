#pragma once
// squared_error: the distance of two matrices, row by row.
#include "kernels/exec/exec.h"
namespace fewbit {
// error[o] = sum_i (a[o, i] - b[o, i])^2, summed in f64.
//   a, b   [out, in] f32; b.data == nullptr counts as zero, which gives the energy of a
//   error  [out]     f64; overwritten
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
