#pragma once
#include "kernels/exec/exec.h"
namespace fewbit {
// What transforms ask of an activation or a weight, column by column, as raw sums that merge by going on:
//   absmax[j] = max(absmax[j], max over rows of |x[r, j]|)
//   abssum[j] += sum over rows of |x[r, j]| / unit[r, j / group]
//   x       [rows, n]  f32 | bf16      unit    [rows, G] f32, never 0; data == nullptr: all ones
//   absmax  [n]  f32                   abssum  [n]  f64
// Rows are added in fixed chunks of kColumnChunk in f64. A NaN is not a maximum; it shows in the sum.
inline constexpr int64_t kColumnChunk = 512;
struct ColumnUnit {
  ConstTensorView unit{};
  int64_t group = 0;  // columns that share a unit
};
namespace cpu {
void column_stats(Exec&, ConstTensorView x, const ColumnUnit&, TensorView absmax, TensorView abssum);
}
namespace cuda {
void column_stats(Exec&, ConstTensorView x, const ColumnUnit&, TensorView absmax, TensorView abssum);
}
inline void column_stats(Exec& ex, ConstTensorView x, const ColumnUnit& u, TensorView absmax, TensorView abssum) {
  pick(ex, &cpu::column_stats, FEWBIT_CUDA_OP(column_stats))(ex, x, u, absmax, abssum);
}
}  // namespace fewbit
