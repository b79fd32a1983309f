#pragma once
#include "kernels/exec/exec.h"
namespace fewbit {
// A coded linear as variables of an optimisation: `level`, the continuous level of every weight, which is rounded
// whenever it is used, and `factor`, a multiplier of every scale.
//   value(o, i) = stored(scale[o, g] * factor[o, g]) * clamp(round(level[o, i]), -zero, 2^bits - 1 - zero),   g = i /
//     group
// where stored() rounds to scale_dtype: the values are those of the codes and scales that would be written now.
struct LearnedGrid {
  TensorView level{};        // [out, in] f32
  TensorView factor{};       // [out, G]  f32
  TensorView mean{};         // [out, G]  f32: Adam's running mean of the factors' gradients
  TensorView square{};       // [out, G]  f32: the same of their squares
  ConstTensorView scales{};  // [out, G]  f32: where the optimisation begins
  ConstTensorView zeros{};   // [out, G]  u8; data == nullptr: 2^(bits-1)
  int bits = 4;
  int64_t group = 128;  // consecutive columns
  DType scale_dtype = DType::f16;
};
struct LearnedStep {
  float level_rate = 0, factor_rate = 0;
  int count = 1;  // of this step, from 1: Adam's correction of its running means
};
// learned_start:  level = code - zero, factor = 1, the running means 0             codes [out, in] u8 learned_values: w
// = the values; overwritten                                     w [out, in] f32 learned_codes:  codes and scales as
// they would be written; overwritten          codes [out, in] u8, scales [out, G] f32 learned_step:   one step down the
// gradient of the values, rounding taken for the identity (straight-through):
//   level -= level_rate * sign(grad * scale);  factor by Adam (Kingma and Ba, 2015; 0.9, 0.999) on sum_group grad *
//   scale * rounded level.   grad [out, in] f32
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
