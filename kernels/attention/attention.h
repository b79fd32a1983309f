#pragma once
// Causal attention: over the tokens at hand, and over a key/value cache that it also fills.
//
// For the query at position p, per head, over the visible keys j:
//   score_j = scale * (q . k_j)       with a softcap: softcap * tanh(score_j / softcap) (Gemma 2 report, 2024, section
//   2) out     = sum_j exp(score_j) v_j / sum_j exp(score_j)          (Vaswani et al., 2017, section 3.2.1) visible   j
//   in [0, p], or (p - window, p] with a sliding window (Jiang et al., Mistral 7B, 2023, section 2)
// Several query heads may share a kv head (grouped-query attention: Ainslie et al., 2023).
//
// Scores, softmax and sums over values are f32; a GPU rounds the weights to bf16 or f16 before they meet the values on
// tensor cores, and a CPU with a matrix unit to bf16 where a whole sequence in bf16 is at hand. A row's bits are the
// same on every run. Which kernel a GPU takes: kernels/attention/README.md.
//
// Errors: a shape or dtype that the contracts below rule out stops the process (FEWBIT_ASSERT). On a GPU a head_dim
// above 512 throws an Error (unsupported).
#include "kernels/exec/exec.h"
namespace fewbit {
struct AttentionArgs {
  int heads = 0, kv_heads = 0;  // heads % kv_heads == 0; query head h reads kv head h / (heads / kv_heads)
  int64_t head_dim = 0;         // of q, k and v alike
  float scale = 1;              // usually 1 / sqrt(head_dim)
  int64_t window = 0;           // in tokens; 0: all earlier positions
  float softcap = 0;            // 0: none
  // [heads] f32: a logit beside the scores of every query of a head, whose weight goes to no value (gpt-oss, 2025).
  // data == nullptr: none. A GPU then takes the plain kernel.
  ConstTensorView sinks{};
  // > 0: a query sees only keys of its own chunk of so many positions, [p / chunk * chunk, p] (Llama 4, 2025); not with
  // a window. A GPU takes the plain kernel where the keys are more than one chunk.
  int64_t chunk = 0;
  // For attention_cached() alone. The launch right before it on this Exec appends to the same cache at the same
  // positions, and lets the next launch begin only when all launches before it have ended; rope_append() is such a one.
  // A GPU may then read the positions and the older keys while the new ones are still being written. The result has the
  // same bits.
  bool behind_append = false;
  // For attention_cached() alone: the heads of the result are multiplied by a Hadamard matrix, as by hadamard()
  // (kernels/model/hadamard.h) afterwards and with the same bits, because the values in the cache are.
  bool turn_back = false;
};

// Attention inside each of `seqs` sequences of equal length len; token i of a sequence stands at position i.
//   q     [seqs * len, heads * head_dim]      f32 | bf16
//   k, v  [seqs * len, kv_heads * head_dim]   dtype of q
//   out   [seqs * len, heads * head_dim]      dtype of q; overwritten; must not overlap q, k or v
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

// The key/value cache of one layer. The dtype of k and v says how it stores, d being one row of head_dim values:
//   that of the activations   the values as they are, without scales
//   f8_e4m3                   E4M3(x / scale), saturated (Micikevicius et al., FP8 Formats for Deep Learning, 2022);
//   one
//                             scale for each kv head, which is set by whoever makes the cache
//   i8                        round(x * 127 / amax), to nearest even, amax being the row's largest magnitude; one scale
//                             for each token and kv head, amax / 127, which is written by kv_append
// In both these forms a value is code * scale.
//   u8                        two codes of 4 bits to a byte, with a scale and a center in bf16 for every group of
//                             features of a token and kv head (kernels/kv/int4_rows.h), written by kv_append
struct KvCache {
  TensorView k{}, v{};  // [batch, kv_heads, capacity, head_dim], of u8 head_dim / 2
  // f32: [kv_heads] for f8_e4m3, [batch, kv_heads, capacity] for i8; bf16 [batch, kv_heads, capacity, 2 * groups] for
  // u8, scale and center in turn
  TensorView k_scales{}, v_scales{};
};
// Features of a head whose rows are stored as `k`.
inline int64_t head_dim_of(const KvCache& c) { return c.k.shape[3] * (c.k.dtype == DType::u8 ? 2 : 1); }

// Writes new tokens into the cache: row b * len + i of k and v is new token i of sequence b, and goes to cache position
// positions[b * len + i]. Nothing else of the cache changes.
//   k, v       [batch * len, kv_heads * head_dim]   f32 | bf16, the same for both
//   positions  [batch * len]   i32, on the Exec's device; in [0, capacity), which only the CPU half checks, and all
//              different within a sequence
namespace cpu {
void kv_append(Exec&, ConstTensorView k, ConstTensorView v, ConstTensorView positions, const KvCache&);
}
namespace cuda {
void kv_append(Exec&, ConstTensorView k, ConstTensorView v, ConstTensorView positions, const KvCache&);
}
inline void kv_append(Exec& ex, ConstTensorView k, ConstTensorView v, ConstTensorView positions, const KvCache& cache) {
  pick(ex, &cpu::kv_append, FEWBIT_CUDA_OP(kv_append))(ex, k, v, positions, cache);
}

// Attention of new tokens over the cache, which already holds their keys and values: the query at position p sees cache
// positions [0, p], cut by the window. Works for one new token of a sequence (decode) and for many (prefill into the
// cache). The host reads no position, so that a recorded graph stays valid while positions advance.
//   q          [batch * len, heads * head_dim]   f32 | bf16; row b * len + i is new token i of sequence b
//   positions  [batch * len]                     i32, on the Exec's device; in [0, capacity)
//   out        like q; overwritten; must not overlap q
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

// Whether the tensors of a cache fit each other and activations of type `compute`. Both halves assert it.
bool consistent(const KvCache&, DType compute);
}  // namespace fewbit
