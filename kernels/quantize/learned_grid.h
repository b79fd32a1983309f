#pragma once
// The variables of learned rounding: a coded linear that an optimiser moves down a gradient.
#include "kernels/exec/exec.h"
#include "kernels/grids/coded_view.h"
namespace fewbit {
// A coded linear as variables: `level`, the continuous level of every weight, which is rounded whenever it is used, and
// `factor`, a multiplier of every scale. With g = i / group and zero, bits and group those of `start`:
//   value(o, i) = stored(scale[o, g] * factor[o, g]) * clamp(round(level[o, i]), -zero, 2^bits - 1 - zero)
// where stored() rounds to scale_dtype: the values are those of the codes and scales that would be written now.
// The levels move as in SignRound (Cheng et al., 2023: signed gradient descent), through the rounding as if it were the
// identity (straight-through; Bengio et al., 2013).
struct LearnedGrid {
  CodedView start{};    // scales and zeros where the optimisation begins; integers, consecutive groups, out_group 1.
                        // Its codes are not read and may be absent
  TensorView level{};   // [out, in] f32
  TensorView factor{};  // [out, G]  f32
  TensorView mean{};    // [out, G]  f32: Adam's running mean of the gradients of the factors
  TensorView square{};  // [out, G]  f32: the same of their squares
  DType scale_dtype = DType::f16;
};
struct LearnedStep {
  float level_rate = 0;   // in levels
  float factor_rate = 0;  // Adam's step size
  int count = 1;          // number of this step, from 1: Adam's correction of its running means
};
// learned_start:   level = code - zero, factor = 1, the running means 0     codes [out, in] u8
// learned_values:  the values now                                           w [out, in] f32; overwritten
// learned_codes:   codes and scales as they would be written                codes [out, in] u8, scales [out, G] f32;
// both
//                                                                           overwritten
// learned_step:    one step down the gradient of the values                 grad [out, in] f32
//   level -= level_rate * sign(grad * scale now), where that is not 0; factor by Adam (Kingma and Ba, 2015; beta 0.9
//   and 0.999) on the sum over its group of grad * scale at the start * rounded level
namespace cpu {
void learned_start(Exec&, ConstTensorView codes, const LearnedGrid&);
void learned_values(Exec&, const LearnedGrid&, TensorView w);
void learned_codes(Exec&, const LearnedGrid&, TensorView codes, TensorView scales);
void learned_step(Exec&, ConstTensorView grad, const LearnedStep&, const LearnedGrid&);
}  // namespace cpu
namespace cuda {
void learned_start(Exec&, ConstTensorView codes, const LearnedGrid&);
void learned_values(Exec&, const LearnedGrid&, TensorView w);
void learned_codes(Exec&, const LearnedGrid&, TensorView codes, TensorView scales);
void learned_step(Exec&, ConstTensorView grad, const LearnedStep&, const LearnedGrid&);
}  // namespace cuda
inline void learned_start(Exec& ex, ConstTensorView codes, const LearnedGrid& g) {
  pick(ex, &cpu::learned_start, FEWBIT_CUDA_OP(learned_start))(ex, codes, g);
}
inline void learned_values(Exec& ex, const LearnedGrid& g, TensorView w) {
  pick(ex, &cpu::learned_values, FEWBIT_CUDA_OP(learned_values))(ex, g, w);
}
inline void learned_codes(Exec& ex, const LearnedGrid& g, TensorView codes, TensorView scales) {
  pick(ex, &cpu::learned_codes, FEWBIT_CUDA_OP(learned_codes))(ex, g, codes, scales);
}
inline void learned_step(Exec& ex, ConstTensorView grad, const LearnedStep& s, const LearnedGrid& g) {
  pick(ex, &cpu::learned_step, FEWBIT_CUDA_OP(learned_step))(ex, grad, s, g);
}
}  // namespace fewbit
