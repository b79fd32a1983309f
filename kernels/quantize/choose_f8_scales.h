#pragma once
// choose_f8_scales: scales of blocks of weights on the E4M3 grid (OCP OFP8, 2023).
#include "kernels/exec/exec.h"
namespace fewbit {
// A float grid is nearly the same at twice the scale, so all that a search can gain is where the weights fall between
// the steps of the grid, and a little clipping.
struct F8ScaleArgs {
  ConstTensorView w{};             // [out, in] f32
  ConstTensorView h{};             // [in] f32 importance of each column; data == nullptr: all ones
  int64_t group = 0;               // columns that share a scale, > 0
  int64_t out_group = 1;           // rows that share a scale
  DType scale_dtype = DType::f32;  // every candidate is rounded to it before it is judged
  bool search = true;              // factors .76 to 2.02, step .02, of max|w| / 448: the one with the least
                                   // sum_i h_i (w_i - round(w_i))^2; false: the factor 1
};
// scales [ceil(out / out_group), ceil(in / group)] f32 is overwritten. A block of zeros gets 1; the first of equally
// good candidates wins. The CPU and the GPU choose alike, to the bit.
namespace cpu {
void choose_f8_scales(Exec&, const F8ScaleArgs&, TensorView scales);
}
namespace cuda {
void choose_f8_scales(Exec&, const F8ScaleArgs&, TensorView scales);
}
inline void choose_f8_scales(Exec& ex, const F8ScaleArgs& a, TensorView scales) {
  pick(ex, &cpu::choose_f8_scales, FEWBIT_CUDA_OP(choose_f8_scales))(ex, a, scales);
}
}  // namespace fewbit
