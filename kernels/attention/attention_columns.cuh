#pragma once
// One warp's step of attention of few query rows: 16 keys, or a multiple, that stand in shared memory against up to 16
// queries. The products are turned: keys are the 16 rows of S^T = K Q^T, dims those of O^T = V^T P^T, and queries the 8
// columns of each, so that the four queries which share a kv head fill half a tile and not a quarter. With lane = 4 g +
// t a lane holds scores of keys g and g + 8 of 16 and of queries 2t and 2t + 1 of eight (the mma C layout). Scores live
// in the base-2 logarithm's domain.
#include "kernels/attention/attention_tile.cuh"

namespace fewbit::cuda {

// The weights of eight keys and eight queries, keys as rows, become those of a B operand: queries as columns.
__device__ __forceinline__ uint32_t transposed_8x8(uint32_t pair) {
  uint32_t out;
  asm volatile("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(out) : "r"(pair));
  return out;
}

// kGroups: of eight queries. Codes take the fragments of an ldmatrix of pairs of codes: a lane holds four neighbours
// where bf16 has two. For K these are two pairs of k, which only asks that Q be read in the same order; for V they are
// two dims of two keys: the even dims of 16 become rows 0 to 7 of the tile, the odd ones rows 8 to 15.
template <int D, int kKeys, class C, int kGroups>
struct WarpColumns {
  static_assert(D % 16 == 0 && kKeys % 16 == 0);
  static constexpr int kUnits = kKeys / 16, kSteps = D / 16;
  static constexpr int kStride = kRowStride<C, D>;                // values from row to row of K and V
  static constexpr bool kHalfValues = std::is_same_v<C, F8Code>;  // the weights are f16
  static constexpr bool kKeepQ = D * kGroups <= 256;              // else Q is read again for every tile: registers
  static constexpr float kNothing = -1e38f;  // the reference of a query that has seen no key; finite, so that
                                             // nothing times nothing is no NaN
  // A reference may stay behind the maximum by so much, in powers of two: f16 weights stay far from their end.
  static constexpr float kSlack = 6;
  using Scores = float[kUnits][kGroups][4];

  float o[kGroups][kSteps][4];
  // Of queries 2t and 2t + 1: the maximum that weights are relative to, and this lane's part of their sum.
  float m[kGroups][2], l[kGroups][2];
  uint32_t q[kGroups][kKeepQ ? kSteps : 1][2];
  const __nv_bfloat16* q_row[kGroups];  // of query g
  bool is_query[kGroups];               // false past the last, where q_row is any other
  int d;

  // Starts from q_row and is_query; the queries are on their way until finish_queries().
  __device__ __forceinline__ void init(int head_dim) {
    d = head_dim;
#pragma unroll
    for (int j = 0; j < kGroups; ++j) {
      m[j][0] = m[j][1] = kNothing;
      l[j][0] = l[j][1] = 0;
#pragma unroll
      for (int n = 0; n < kSteps; ++n)
#pragma unroll
        for (int i = 0; i < 4; ++i) o[j][n][i] = 0;
    }
    if constexpr (kKeepQ) {
#pragma unroll
      for (int j = 0; j < kGroups; ++j)
#pragma unroll
        for (int k = 0; k < kSteps; ++k) load_q(q[j][k], j, k);
    }
  }
  __device__ __forceinline__ void finish_queries() {
    if constexpr (kKeepQ) {
#pragma unroll
      for (int j = 0; j < kGroups; ++j)
#pragma unroll
        for (int k = 0; k < kSteps; ++k) finish_q(q[j][k], j, k);
    }
  }

  // The B operand of 16 dims is what load_q() reads, after finish_q(). Every load is made, of other values where these
  // are missing: a condition for each holds them up.
  __device__ __forceinline__ void load_q(uint32_t (&b)[2], int j, int k) const {
    const int t = threadIdx.x % 4;
    if constexpr (kIsCode<C>) {
      const auto four = *reinterpret_cast<const uint2*>(q_row[j] + min(16 * k, d - 16) + 4 * t);
      b[0] = four.x, b[1] = four.y;
    } else {
#pragma unroll
      for (int i = 0; i < 2; ++i)
        b[i] = *reinterpret_cast<const uint32_t*>(q_row[j] + min(16 * k + 8 * i, d - 8) + 2 * t);
    }
  }
  __device__ __forceinline__ void finish_q(uint32_t (&b)[2], int j, int k) const {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      if constexpr (kIsCode<C>) b[i] = to_f16(b[i]);
      if (!is_query[j] || 16 * k + (kIsCode<C> ? 0 : 8 * i) >= d) b[i] = 0;
    }
  }

  static __device__ __forceinline__ uint32_t to_f16(uint32_t bf16s) {
    const float2 v = __bfloat1622float2(*reinterpret_cast<const __nv_bfloat162*>(&bf16s));
    return pack_f16(v.x, v.y);
  }

  // s = K Q^T for the kKeys rows at k_sh.
  __device__ __forceinline__ void scores(Scores& s, const C* k_sh) {
    const int lane = threadIdx.x % 32;
    const C* row = k_sh + lane % 16 * kStride + lane / 16 * (16 / static_cast<int>(sizeof(C)));
#pragma unroll
    for (int u = 0; u < kUnits; ++u) {
      float part[2][kGroups][4] = {};  // two chains of products: their latency is what a step waits for
      uint32_t a[4];
      if constexpr (kIsCode<C>) {
#pragma unroll
        for (int k = 0; k < kSteps; k += 2) {
          uint32_t w[4];
          if (k + 1 < kSteps)
            ldmatrix(w, row + u * 16 * kStride + k * 16);
          else
            ldmatrix_two(w, row + u * 16 * kStride + k * 16);
#pragma unroll
          for (int i = 0; i < 2 && k + i < kSteps; ++i) {
            key_codes(C{}, w[2 * i], a[0], a[2]);
            key_codes(C{}, w[2 * i + 1], a[1], a[3]);
            add_scores(part[i], a, k + i);
          }
        }
      } else {
#pragma unroll
        for (int k = 0; k < kSteps; ++k) {
          ldmatrix(a, row + u * 16 * kStride + k * 16);
          add_scores(part[k % 2], a, k);
        }
      }
#pragma unroll
      for (int j = 0; j < kGroups; ++j)
#pragma unroll
        for (int i = 0; i < 4; ++i) s[u][j][i] = part[0][j][i] + part[1][j][i];
    }
  }
  __device__ __forceinline__ void add_scores(float (&s)[kGroups][4], const uint32_t (&a)[4], int k) {
#pragma unroll
    for (int j = 0; j < kGroups; ++j) {
      if constexpr (!kKeepQ) {
        load_q(q[j][0], j, k);
        finish_q(q[j][0], j, k);
      }
      const uint32_t(&b)[2] = q[j][kKeepQ ? k : 0];
      if constexpr (kIsCode<C>)
        mma_f16(s[j], a, b[0], b[1]);
      else
        mma_bf16(s[j], a, b[0], b[1]);
    }
  }

  // Calls f(score, key, j, c) for all scores of this lane: of query 8 j + 2 t + c.
  template <class F>
  static __device__ __forceinline__ void for_scores(Scores& s, F&& f) {
    const int g = threadIdx.x % 32 / 4;
#pragma unroll
    for (int u = 0; u < kUnits; ++u)
#pragma unroll
      for (int j = 0; j < kGroups; ++j)
#pragma unroll
        for (int i = 0; i < 4; ++i) f(s[u][j][i], u * 16 + i / 2 * 8 + g, j, i % 2);
  }

  // Scales (and caps) the scores; keys that a query does not see become minus infinity where `masked`.
  // key_scales [kKeys]: of codes with a scale per token. position: of this lane's queries.
  __device__ __forceinline__ void finish_scores(Scores& s, const float* key_scales, float scale, float softcap,
                                                bool masked, int first_key, const int (&position)[kGroups][2],
                                                int window) {
    const float by = softcap > 0 ? scale / softcap : scale * kLog2e;
    for_scores(s, [&](float& x, int key, int, int) { x *= kTokenScales<C> ? by * key_scales[key] : by; });
    if (softcap > 0) for_scores(s, [&](float& x, int, int, int) { x = softcap * kLog2e * tanhf(x); });
    if (!masked) return;
    for_scores(s, [&](float& x, int key, int j, int c) {
      const int at = first_key + key, p = position[j][c];
      if (at > p || (window > 0 && at <= p - window)) x = -INFINITY;
    });
  }

  // Turns s into weights. The reference they are relative to follows the maximum only when that has run away from it,
  // so that most steps neither ask the other lanes for their maxima nor scale what was summed before.
  __device__ __forceinline__ void softmax(Scores& s) {
    bool behind = false;
    for_scores(s, [&](float& x, int, int j, int c) { behind |= x > m[j][c] + kSlack; });
    if (__any_sync(0xffffffffu, behind)) raise(s);
    for_scores(s, [&](float& x, int, int j, int c) {
      x = exp2_fast(x - m[j][c]);
      l[j][c] += x;
    });
  }
  __device__ __forceinline__ void raise(const Scores& s) {
#pragma unroll
    for (int j = 0; j < kGroups; ++j)
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        float top = m[j][c];
#pragma unroll
        for (int u = 0; u < kUnits; ++u) top = fmaxf(top, fmaxf(s[u][j][c], s[u][j][c + 2]));
#pragma unroll
        for (int lane = 4; lane < 32; lane *= 2) top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, lane));
        const float keep = exp2_fast(m[j][c] - top);
        m[j][c] = top;
        l[j][c] *= keep;
#pragma unroll
        for (int n = 0; n < kSteps; ++n) {
          o[j][n][c] *= keep;
          o[j][n][c + 2] *= keep;
        }
      }
  }

  // o += s V for the kKeys rows at v_sh; value_scales like key_scales. Leaves s scaled.
  __device__ __forceinline__ void add_values(Scores& s, const float* value_scales, const C* v_sh) {
    if constexpr (kTokenScales<C>) for_scores(s, [&](float& x, int key, int, int) { x *= value_scales[key]; });
    const int lane = threadIdx.x % 32;
    const C* row = kIsCode<C> ? v_sh + lane % 16 * kStride + lane / 16 * 16
                              : v_sh + (lane % 8 + lane / 16 * 8) * kStride + lane / 8 % 2 * 8;
#pragma unroll
    for (int u = 0; u < kUnits; ++u) {
      uint32_t b[kGroups][2];
#pragma unroll
      for (int j = 0; j < kGroups; ++j)
#pragma unroll
        for (int i = 0; i < 2; ++i) {
          const float x = s[u][j][2 * i], y = s[u][j][2 * i + 1];
          b[j][i] = transposed_8x8(kHalfValues ? pack_f16(x, y) : pack_bf16(x, y));
        }
      uint32_t a[4];
      if constexpr (kIsCode<C>) {
#pragma unroll
        for (int n = 0; n < kSteps; n += 2) {
          uint32_t w[4];
          if (n + 1 < kSteps)
            ldmatrix_transposed(w, row + u * 16 * kStride + n * 16);
          else
            ldmatrix_two_transposed(w, row + u * 16 * kStride + n * 16);
#pragma unroll
          for (int i = 0; i < 2 && n + i < kSteps; ++i) {
            value_codes(C{}, w[2 * i], a[0], a[1]);
            value_codes(C{}, w[2 * i + 1], a[2], a[3]);
            add_dims(n + i, a, b);
          }
        }
      } else {
#pragma unroll
        for (int n = 0; n < kSteps; ++n) {
          ldmatrix_transposed(a, row + u * 16 * kStride + n * 16);
          add_dims(n, a, b);
        }
      }
    }
  }
  __device__ __forceinline__ void add_dims(int n, const uint32_t (&a)[4], const uint32_t (&b)[kGroups][2]) {
#pragma unroll
    for (int j = 0; j < kGroups; ++j) {
      if constexpr (kHalfValues)
        mma_f16(o[j][n], a, b[j][0], b[j][1]);
      else
        mma_bf16(o[j][n], a, b[j][0], b[j][1]);
    }
  }

  // Leaves o times `scale` at `to` [8 * kGroups, stride], f32.
  __device__ __forceinline__ void store(float* to, int stride, float scale) const {
    const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
    for (int j = 0; j < kGroups; ++j)
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        float* row = to + (8 * j + 2 * t + c) * stride;
#pragma unroll
        for (int n = 0; n < kSteps; ++n) {
          const float x = o[j][n][c] * scale, y = o[j][n][c + 2] * scale;
          if constexpr (kIsCode<C>) {
            *reinterpret_cast<float2*>(row + n * 16 + 2 * g) = {x, y};
          } else {
            row[n * 16 + g] = x;
            row[n * 16 + 8 + g] = y;
          }
        }
      }
  }

  // The whole sums on every lane that holds part of them.
  __device__ __forceinline__ void finish_sums() {
#pragma unroll
    for (int j = 0; j < kGroups; ++j)
#pragma unroll
      for (int c = 0; c < 2; ++c)
#pragma unroll
        for (int lane = 4; lane < 32; lane *= 2) l[j][c] += __shfl_xor_sync(0xffffffffu, l[j][c], lane);
  }
};

}  // namespace fewbit::cuda
