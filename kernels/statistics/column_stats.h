#pragma once
// column_stats: the largest and the summed magnitude of every column.
#include "kernels/exec/exec.h"
namespace fewbit {
// Transforms choose their scales by these magnitudes of activations and weights (SmoothQuant: Xiao et al., 2022,
// section 4; AWQ: Lin et al., 2023, section 3.2). Both outputs go on from what is there, batch after batch:
//   absmax[j] = max(absmax[j], max_r |x[r, j]|)
//   abssum[j] += sum_r |x[r, j]| / unit[r, j / group]
//   x       [rows, n]  f32 | bf16
//   unit    [rows, G]  f32, never 0; data == nullptr: all ones
//   absmax  [n]  f32, in units of x
//   abssum  [n]  f64, in units of x / unit; divide by the number of rows for a mean
// Rows are added in fixed chunks of kColumnChunk in f64, so a caller that passes multiples of it gets the same bits
// however it batches. A NaN is no maximum; it shows in the sum.
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
