#pragma once
#include "kernels/exec/exec.h"
namespace fewbit {
// Rotary position embedding, in place, "rotate half" form (Su et al., RoFormer; pairing of the Llama family):
// for i < rot/2, with a = position * inv_freq[i], c = cos(a) * attention_scale, s = sin(a) * attention_scale:
//   (u, v) = (x[i], x[i + rot/2])  ->  (u c - v s, v c + u s)
//   x          [tokens, heads * head_dim]  f32 | bf16; computed in f32, rounded once. rot = 2 * |inv_freq| <= head_dim
//   positions  [tokens]                    i32
//   inv_freq   [rot / 2]                   f32
namespace cpu {
void rope(Exec&, TensorView x, ConstTensorView positions, ConstTensorView inv_freq, int64_t head_dim,
          float attention_scale);
}
namespace cuda {
void rope(Exec&, TensorView x, ConstTensorView positions, ConstTensorView inv_freq, int64_t head_dim,
          float attention_scale);
}
inline void rope(Exec& ex, TensorView x, ConstTensorView positions, ConstTensorView inv_freq, int64_t head_dim,
                 float attention_scale) {
  pick(ex, &cpu::rope, FEWBIT_CUDA_OP(rope))(ex, x, positions, inv_freq, head_dim, attention_scale);
}
}  // namespace fewbit
