#pragma once
// scaled_peaks: where the largest entry of every run of a matrix stands once its columns are scaled.
#include "kernels/exec/exec.h"
namespace fewbit {
// The row steps and group steps of a rounding are set by one entry each; a search over scales asks for them again and
// again (src/quant/search/rounding_noise.h). A run is `length` neighbouring entries of a row:
//   at[r]     the first column j of run r with the largest |x_j * scale_j|, products in f32
//   value[r]  x_j
//   x      [rows, n]           f32, no NaN
//   scale  [n]                 f32
//   at     [rows * n / length] i32; length divides n
//   value  the same            f32
namespace cpu {
void scaled_peaks(Exec&, ConstTensorView x, ConstTensorView scale, int64_t length, TensorView at, TensorView value);
}
namespace cuda {
void scaled_peaks(Exec&, ConstTensorView x, ConstTensorView scale, int64_t length, TensorView at, TensorView value);
}
inline void scaled_peaks(Exec& ex, ConstTensorView x, ConstTensorView scale, int64_t length, TensorView at,
                         TensorView value) {
  FEWBIT_ASSERT(scale.numel() == x.cols() && length > 0 && x.cols() % length == 0);
  FEWBIT_ASSERT(at.numel() == x.numel() / length && value.numel() == at.numel());
  pick(ex, &cpu::scaled_peaks, FEWBIT_CUDA_OP(scaled_peaks))(ex, x, scale, length, at, value);
}
}  // namespace fewbit
