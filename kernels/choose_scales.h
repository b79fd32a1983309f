#pragma once
#include "kernels/exec.h"
namespace fewbit {
// How the scale (and zero) of a group of weights is found.
enum class ScaleRule : uint8_t {
  absmax,     // symmetric: 2 max|w| / (2^bits - 1) (the published GPTQ's); asymmetric: (max - min) / (2^bits - 1)
              // with the range forced to hold 0, zero = round(-min / scale)
  diag_grid,  // the candidate with the least sum_i h_i (w_i - round(w_i))^2. Symmetric: factors [lo, hi] step .02 of
              // max|w| / 2^(bits-1), each with both signs. Asymmetric: the absmax range shrunk by the same factors
  loop_grid,  // the same candidates, each tried by the column loop itself on the group's live weights: the least sum
              // of e^2 over the group's columns. Only error_feedback can, where it chooses the scales of a group that
              // fits its tiles; everywhere else it means diag_grid
};
struct ScaleSearch {
  ScaleRule rule = ScaleRule::diag_grid;
  int bits = 4;
  bool symmetric = true;
  DType scale_dtype = DType::f16;  // every candidate is rounded to it before it is judged
  float lo = 0.56f, hi = 1.10f;    // factors of the grid; quality-levers: .56-1.10 at 4 bits, .40-1.10 at 3
};
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
