#pragma once
#include "kernels/exec/exec.h"
namespace fewbit {
struct AttentionArgs {
  int heads = 0, kv_heads = 0;  // heads % kv_heads == 0; query head h reads kv head h / (heads / kv_heads)
  int64_t head_dim = 0;
  float scale = 1;
  int64_t window = 0;  // 0 = all earlier positions; else position p sees (p - window, p]
  float softcap = 0;   // 0 = none; else scores become softcap * tanh(score / softcap)
  // attention_cached() alone: the launch right before on this Exec was one that appends to the same cache at the same
  // positions and lets the next begin only when all before it have ended (rope_append()). A GPU may then read the
  // positions and older keys while the new ones are still on their way.
  bool behind_append = false;
};

// Causal attention inside each of `seqs` sequences of equal length; softmax in f32.
//   q    [seqs * len, heads * head_dim]     f32 | bf16      k, v [seqs * len, kv_heads * head_dim]
//   out  [seqs * len, heads * head_dim]     dtype of q; overwritten
namespace cpu {
void attention(Exec&, ConstTensorView q, ConstTensorView k, ConstTensorView v, int64_t seqs, const AttentionArgs&,
               TensorView out);
}
namespace cuda {
void attention(Exec&, ConstTensorView q, ConstTensorView k, ConstTensorView v, int64_t seqs, const AttentionArgs&,
               TensorView out);
}
inline void attention(Exec& ex, ConstTensorView q, ConstTensorView k, ConstTensorView v, int64_t seqs,
                      const AttentionArgs& a, TensorView out) {
  pick(ex, &cpu::attention, FEWBIT_CUDA_OP(attention))(ex, q, k, v, seqs, a, out);
}

// The key/value cache of one layer. How it stores is told by the dtype of k and v:
//   that of the activations: as they are, without scales
//   f8_e4m3: value = code * scale, one static scale per kv head; E4M3(x / scale), saturated
//   i8:      value = code * scale with a scale per token and kv head, set by kv_append: amax / 127
struct KvCache {
  TensorView k{}, v{};                // [batch, kv_heads, capacity, head_dim]
  TensorView k_scales{}, v_scales{};  // f32: [kv_heads] for f8_e4m3, [batch, kv_heads, capacity] for i8
};

// Row b * len + i of k and v (f32 | bf16) is new token i of sequence b and goes to cache position
// positions[b * len + i] (i32, on the device).
namespace cpu {
void kv_append(Exec&, ConstTensorView k, ConstTensorView v, ConstTensorView positions, const KvCache&);
}
namespace cuda {
void kv_append(Exec&, ConstTensorView k, ConstTensorView v, ConstTensorView positions, const KvCache&);
}
inline void kv_append(Exec& ex, ConstTensorView k, ConstTensorView v, ConstTensorView positions, const KvCache& cache) {
  pick(ex, &cpu::kv_append, FEWBIT_CUDA_OP(kv_append))(ex, k, v, positions, cache);
}

// Attention of new tokens over the cache (which already holds them): the query at position p sees cache positions
// [0, p], cut by the window. Works for one new token (decode) and for many (prefill into the cache); no host value
// of a position is read, so a recorded graph stays valid while positions advance.
//   q [batch * len, heads * head_dim], positions [batch * len] i32, out like q; overwritten
namespace cpu {
void attention_cached(Exec&, ConstTensorView q, ConstTensorView positions, const KvCache&, const AttentionArgs&,
                      TensorView out);
}
namespace cuda {
void attention_cached(Exec&, ConstTensorView q, ConstTensorView positions, const KvCache&, const AttentionArgs&,
                      TensorView out);
}
inline void attention_cached(Exec& ex, ConstTensorView q, ConstTensorView positions, const KvCache& cache,
                             const AttentionArgs& a, TensorView out) {
  pick(ex, &cpu::attention_cached, FEWBIT_CUDA_OP(attention_cached))(ex, q, positions, cache, a, out);
}

// Whether the tensors of a cache fit each other and activations of type `compute` (both halves assert it).
bool consistent(const KvCache&, DType compute);
}  // namespace fewbit
