#pragma once
#include "kernels/exec/exec.h"
#include "kernels/grids/scale_search.h"
namespace fewbit {
ScaleSearch default_search(int bits, bool symmetric, ScaleRule rule);

// scales[o, g] (and zeros[o, g]) for consecutive groups of `group` columns of w.
//   w       [out, in]  f32          h      [in] f32 importance of each column; data == nullptr: all ones
//   scales  [out, G]   f32; overwritten, representable in scale_dtype, never 0
//   zeros   [out, G]   u8; overwritten; data == nullptr when symmetric
// An all-zero group gets scale 1 (rounded) and, if asymmetric, zero 0. Ties go to the earlier candidate, positive
// first.
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
