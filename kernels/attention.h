#pragma once
#include "kernels/exec.h"
namespace fewbit {
struct AttentionArgs {
  int heads = 0, kv_heads = 0;  // heads % kv_heads == 0; query head h reads kv head h / (heads / kv_heads)
  int64_t head_dim = 0;
  float scale = 1;
  int64_t window = 0;  // 0 = all earlier positions; else position p sees (p - window, p]
  float softcap = 0;   // 0 = none; else scores become softcap * tanh(score / softcap)
};

// Causal attention inside each of `seqs` sequences of equal length; softmax in f32.
//   q    [seqs * len, heads * head_dim]     f32 | bf16      k, v [seqs * len, kv_heads * head_dim]
//   out  [seqs * len, heads * head_dim]     dtype of q; overwritten
namespace cpu  { void attention(Exec&, ConstTensorView q, ConstTensorView k, ConstTensorView v, int64_t seqs, const AttentionArgs&, TensorView out); }
namespace cuda { void attention(Exec&, ConstTensorView q, ConstTensorView k, ConstTensorView v, int64_t seqs, const AttentionArgs&, TensorView out); }
inline void attention(Exec& ex, ConstTensorView q, ConstTensorView k, ConstTensorView v, int64_t seqs, const AttentionArgs& a, TensorView out) {
  pick(ex, &cpu::attention, FEWBIT_CUDA_OP(attention))(ex, q, k, v, seqs, a, out);
}

// The key/value cache: [batch, kv_heads, capacity, head_dim], dtype of the activations. Row b * len + i of k and v
// is new token i of sequence b and goes to cache position positions[b * len + i] (i32, on the device).
namespace cpu  { void kv_append(Exec&, ConstTensorView k, ConstTensorView v, ConstTensorView positions, TensorView k_cache, TensorView v_cache); }
namespace cuda { void kv_append(Exec&, ConstTensorView k, ConstTensorView v, ConstTensorView positions, TensorView k_cache, TensorView v_cache); }
inline void kv_append(Exec& ex, ConstTensorView k, ConstTensorView v, ConstTensorView positions, TensorView k_cache, TensorView v_cache) {
  pick(ex, &cpu::kv_append, FEWBIT_CUDA_OP(kv_append))(ex, k, v, positions, k_cache, v_cache);
}

// Attention of new tokens over the cache (which already holds them): the query at position p sees cache positions
// [0, p], cut by the window. Works for one new token (decode) and for many (prefill into the cache); no host value
// of a position is read, so a recorded graph stays valid while positions advance.
//   q [batch * len, heads * head_dim], positions [batch * len] i32, out like q; overwritten
namespace cpu  { void attention_cached(Exec&, ConstTensorView q, ConstTensorView positions, ConstTensorView k_cache, ConstTensorView v_cache, const AttentionArgs&, TensorView out); }
namespace cuda { void attention_cached(Exec&, ConstTensorView q, ConstTensorView positions, ConstTensorView k_cache, ConstTensorView v_cache, const AttentionArgs&, TensorView out); }
inline void attention_cached(Exec& ex, ConstTensorView q, ConstTensorView positions, ConstTensorView k_cache, ConstTensorView v_cache, const AttentionArgs& a, TensorView out) {
  pick(ex, &cpu::attention_cached, FEWBIT_CUDA_OP(attention_cached))(ex, q, positions, k_cache, v_cache, a, out);
}
}  // namespace fewbit
