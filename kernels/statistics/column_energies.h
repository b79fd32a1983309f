#pragma once
// column_energies: the summed squares of every column.
#include "kernels/exec/exec.h"
namespace fewbit {
// energy[j] = sum_r x[r, j]^2, products and sums in f64.
//   x       [rows, n]  f32
//   energy  [n]        f64; overwritten
// The order of the sums is fixed for a shape and a device; on the CPU it is that of the rows.
namespace cpu {
void column_energies(Exec&, ConstTensorView x, TensorView energy);
}
namespace cuda {
void column_energies(Exec&, ConstTensorView x, TensorView energy);
}
inline void column_energies(Exec& ex, ConstTensorView x, TensorView energy) {
  FEWBIT_ASSERT(x.dtype == DType::f32 && energy.dtype == DType::f64 && energy.numel() == x.cols());
  pick(ex, &cpu::column_energies, FEWBIT_CUDA_OP(column_energies))(ex, x, energy);
}
}  // namespace fewbit
