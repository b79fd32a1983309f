#pragma once
// rope: rotary position embedding. scale_by_position: what keeps queries far behind the first positions sharp.
#include "kernels/exec/exec.h"
namespace fewbit {
// Su et al., RoFormer (2021), section 3.2, in the "rotate half" pairing of the Llama family. In every head, for
// 0 <= i < rot/2, with a = positions[t] * inv_freq[i], c = cos(a) * attention_scale and s = sin(a) * attention_scale:
//   (u, v) = (x[i], x[i + rot/2]), or of neighbours (x[2 i], x[2 i + 1]),  becomes  (u c - v s, v c + u s);   values
//   from rot on stay x                [tokens, heads * head_dim]  f32 | bf16, in place; computed in f32, rounded once
//   positions        [tokens]                    i32
//   inv_freq         [rot / 2]                   f32, radians per position; rot <= head_dim
//   attention_scale  1, but for YaRN (Peng et al., 2023, section 3.4) and LongRoPE (Ding et al., 2024)
// How a model's rope_scaling becomes inv_freq (linear, Llama 3, YaRN, LongRoPE) is settled where its config is read.
// scale_by_position: row t of x times 1 + factor * ln(1 + floor((positions[t] + shift) / every)), which Llama 4 and
// Ministral 3 multiply their queries by (2025); x, positions as above, every > 0.
enum class RopePairs : uint8_t { halves, neighbours };
namespace cpu {
void rope(Exec&, TensorView x, ConstTensorView positions, ConstTensorView inv_freq, int64_t head_dim,
          float attention_scale, RopePairs pairs);
void scale_by_position(Exec&, TensorView x, ConstTensorView positions, float factor, int64_t every, int64_t shift);
}  // namespace cpu
namespace cuda {
void rope(Exec&, TensorView x, ConstTensorView positions, ConstTensorView inv_freq, int64_t head_dim,
          float attention_scale, RopePairs pairs);
void scale_by_position(Exec&, TensorView x, ConstTensorView positions, float factor, int64_t every, int64_t shift);
}  // namespace cuda
inline void rope(Exec& ex, TensorView x, ConstTensorView positions, ConstTensorView inv_freq, int64_t head_dim,
                 float attention_scale, RopePairs pairs = RopePairs::halves) {
  pick(ex, &cpu::rope, FEWBIT_CUDA_OP(rope))(ex, x, positions, inv_freq, head_dim, attention_scale, pairs);
}
inline void scale_by_position(Exec& ex, TensorView x, ConstTensorView positions, float factor, int64_t every,
                              int64_t shift) {
  FEWBIT_ASSERT(positions.dtype == DType::i32 && positions.numel() == x.rows() && every > 0);
  pick(ex, &cpu::scale_by_position, FEWBIT_CUDA_OP(scale_by_position))(ex, x, positions, factor, every, shift);
}
}  // namespace fewbit
