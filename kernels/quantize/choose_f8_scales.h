#pragma once
#include "kernels/exec/exec.h"
namespace fewbit {
// Scales of blocks of weights on the E4M3 grid. The grid is nearly the same at twice the scale, so what a search can
// gain is where the weights fall between its steps, and a little clipping.
struct F8ScaleArgs {
  ConstTensorView w{};             // [out, in] f32
  ConstTensorView h{};             // [in] f32 importance of each column; data == nullptr: all ones
  int64_t group = 0;               // columns that share a scale, > 0
  int64_t out_group = 1;           // rows that share a scale
  DType scale_dtype = DType::f32;  // every candidate is rounded to it before it is judged
  bool search = true;              // the factor .76 to 2.02, step .02, of max|w| / 448 with the least
                                   // sum_i h_i (w_i - round(w_i))^2; else the factor 1
};
// scales [ceil(out / out_group), ceil(in / group)] f32; overwritten. A block of zeros gets 1. CPU and CUDA choose
// alike.
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
