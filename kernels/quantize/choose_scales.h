#pragma once
// choose_scales: the scale and zero of every group of weights on an integer grid.
#include "kernels/exec/exec.h"
#include "kernels/grids/scale_search.h"
namespace fewbit {
// The factors of the grid of candidates for a number of bits: from .56 at 4 bits and above, from .40 below.
ScaleSearch default_search(int bits, bool symmetric, ScaleRule rule);

// scales[o, g] (and zeros[o, g]) for consecutive groups of `group` columns of w, by the rule of the search
// (kernels/grids/scale_search.h): the published range of GPTQ, or the candidate with the least error weighted by h.
//   w       [out, in]  f32, finite
//   h       [in]       f32 importance of each column, in GPTQ the diagonal of H; data == nullptr: all ones
//   scales  [out, G]   f32; overwritten with values of search.scale_dtype, never 0
//   zeros   [out, G]   u8; overwritten; data == nullptr when symmetric
// A group of zeros gets the scale 1 and, if asymmetric, the zero 0. Of equally good candidates the earlier one wins,
// the positive sign first. The CPU and the GPU choose alike, to the bit.
namespace cpu {
void choose_scales(Exec&, ConstTensorView w, ConstTensorView h, int64_t group, const ScaleSearch&, TensorView scales,
                   TensorView zeros);
}
namespace cuda {
void choose_scales(Exec&, ConstTensorView w, ConstTensorView h, int64_t group, const ScaleSearch&, TensorView scales,
                   TensorView zeros);
}
inline void choose_scales(Exec& ex, ConstTensorView w, ConstTensorView h, int64_t group, const ScaleSearch& s,
                          TensorView scales, TensorView zeros) {
  pick(ex, &cpu::choose_scales, FEWBIT_CUDA_OP(choose_scales))(ex, w, h, group, s, scales, zeros);
}
}  // namespace fewbit
