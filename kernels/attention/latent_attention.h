#pragma once
// latent_attention: attention whose keys and values are made from one small latent a token (multi-head latent
// attention: DeepSeek-V2, 2024, section 2.1), over the tokens at hand or over a cache of latents.
//
// For the query of head h at position p, over the visible keys j in [0, p], or over the chosen ones alone:
//   score_j = scale (q_nope . k_nope_j + q_rope . k_rope_j)        k_rope is one for all heads
//   out     = sum_j exp(score_j) v_j / sum_j exp(score_j)
// where k_nope_j and v_j are the head's rows of W latent_j, W [heads * (nope + value), rank] having `nope` rows for the
// keys of a head, then `value` for its values.
// Over the tokens at hand the caller brings W latent. Over a cache W is taken into the queries and the outputs, which
// is the same in exact arithmetic (section 2.1.2):
//   q_nope . k_nope_j = (W_k^T q_nope) . latent_j,      out = W_v sum_j p_j latent_j
// so that a position costs rank + rope values whatever the number of heads.
//
// Scores, softmax and sums are f32; a GPU may round weights to bf16 (attention.h), and over a cache the queries that W
// is taken into and the sums over a part of the keys; both halves round the output once. A row's bits are the same on
// every run. A cache may have its latents in E4M3, a scale for every 128 features of a token; the turned keys, which
// are few and large, stay as they are.
//
// Errors: a shape or dtype that the contracts rule out stops the process. On a GPU nope + rope above 256, a value wider
// than nope + rope, and a rank above 1024 throw an Error (unsupported).
#include "kernels/exec/exec.h"
namespace fewbit {
struct LatentArgs {
  int heads = 0;
  int64_t nope = 0, rope = 0, value = 0, rank = 0;  // features
  float scale = 1;
};
// All of dtype f32 | bf16, alike.
struct LatentQueries {
  ConstTensorView nope{};  // [tokens, heads * nope]
  ConstTensorView rope{};  // [tokens, heads * rope]
  // [tokens, n] i32: of every query the positions of its keys, as choose_keys() (key_choice.h) makes them. data ==
  // nullptr: all keys up to its own position.
  ConstTensorView chosen{};
};
inline constexpr int64_t kLatentGroup = 128;  // features of a latent that share a scale
constexpr int64_t latent_groups(int64_t rank) { return (rank + kLatentGroup - 1) / kLatentGroup; }
struct LatentCache {
  TensorView latent{};  // [batch, capacity, rank], the dtype of the queries, or f8_e4m3
  TensorView k_rope{};  // [batch, capacity, rope], the dtype of the queries
  TensorView scales{};  // of f8_e4m3: [batch, capacity, latent_groups(rank)] f32; value = code * scale
};

// Inside each of `seqs` sequences of equal length; token i of a sequence stands at position i.
//   kv      [tokens, heads * (nope + value)]   of every head its key's part, then its value
//   k_rope  [tokens, rope]
//   out     [tokens, heads * value]            overwritten; must not overlap the rest
namespace cpu {
void latent_attention(Exec&, const LatentQueries&, ConstTensorView kv, ConstTensorView k_rope, int64_t seqs,
                      const LatentArgs&, TensorView out);
}
namespace cuda {
void latent_attention(Exec&, const LatentQueries&, ConstTensorView kv, ConstTensorView k_rope, int64_t seqs,
                      const LatentArgs&, TensorView out);
}
void check_latent(const LatentQueries&, const LatentArgs&, int64_t seqs, ConstTensorView out);
inline void latent_attention(Exec& ex, const LatentQueries& q, ConstTensorView kv, ConstTensorView k_rope, int64_t seqs,
                             const LatentArgs& a, TensorView out) {
  check_latent(q, a, seqs, out);
  FEWBIT_ASSERT(kv.dtype == out.dtype && kv.rows() == out.rows() && kv.cols() == a.heads * (a.nope + a.value));
  FEWBIT_ASSERT(k_rope.dtype == out.dtype && k_rope.rows() == out.rows() && k_rope.cols() == a.rope);
  pick(ex, &cpu::latent_attention, FEWBIT_CUDA_OP(latent_attention))(ex, q, kv, k_rope, seqs, a, out);
}

// Over the cache, which already holds the latents of these tokens (cache_rows.h). The host reads no position.
//   w          [heads * (nope + value), rank]   the dtype of the queries
//   positions  [tokens] i32, in [0, capacity); row b * len + i is new token i of sequence b
//   out        [tokens, heads * value]          overwritten
namespace cpu {
void latent_attention_cached(Exec&, const LatentQueries&, ConstTensorView w, ConstTensorView positions,
                             const LatentCache&, const LatentArgs&, TensorView out);
}
namespace cuda {
void latent_attention_cached(Exec&, const LatentQueries&, ConstTensorView w, ConstTensorView positions,
                             const LatentCache&, const LatentArgs&, TensorView out);
}
inline void latent_attention_cached(Exec& ex, const LatentQueries& q, ConstTensorView w, ConstTensorView positions,
                                    const LatentCache& cache, const LatentArgs& a, TensorView out) {
  const Shape& s = cache.latent.shape;
  FEWBIT_ASSERT(s.rank() == 3 && s[2] == a.rank && cache.k_rope.shape == Shape({s[0], s[1], a.rope}));
  FEWBIT_ASSERT(cache.k_rope.dtype == out.dtype && w.dtype == out.dtype);
  if (cache.scales.data)
    FEWBIT_ASSERT(cache.latent.dtype == DType::f8_e4m3 && cache.scales.dtype == DType::f32 &&
                  cache.scales.shape == Shape({s[0], s[1], latent_groups(a.rank)}));
  else
    FEWBIT_ASSERT(cache.latent.dtype == out.dtype);
  FEWBIT_ASSERT(w.rows() == a.heads * (a.nope + a.value) && w.cols() == a.rank);
  FEWBIT_ASSERT(positions.dtype == DType::i32 && positions.numel() == out.rows());
  check_latent(q, a, s[0], out);
  pick(ex, &cpu::latent_attention_cached, FEWBIT_CUDA_OP(latent_attention_cached))(ex, q, w, positions, cache, a, out);
}
}  // namespace fewbit
