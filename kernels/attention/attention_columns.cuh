#pragma once
// One warp's step of attention of few query rows: up to 16 queries against 16 keys, or a multiple, in shared memory.
// The products are transposed: keys are the 16 rows of S^T = K Q^T, dims are those of O^T = V^T P^T, and queries are
// the 8 columns of each, so that the four queries which share a kv head fill half a tile and not a quarter. With lane =
// 4 g + t a lane holds, of every 16 keys and eight queries, the scores of keys g and g + 8 for queries 2t and 2t + 1
// (the mma C layout, kernels/device/mma.cuh). Scores live in the domain of the base-2 logarithm.
#include "kernels/attention/kv_tiles.cuh"
#include "kernels/attention/softmax_merge.cuh"
#include "kernels/kv/int4_rows.cuh"

namespace fewbit::cuda::attention_columns {

// kGroups: groups of eight queries. C: what keys and values are stored as. Codes, of one byte, come by an ldmatrix that
// takes pairs of codes for 16-bit values, so that a lane holds four neighbouring codes where it would hold two bf16:
//   K   the four are two neighbouring pairs of k of one product, which only asks that Q be read in the same order
//   V   the four are two dims of two keys; the even dims of 16 become rows 0 to 7 of the tile, the odd ones rows 8 to
//   15
// Products with codes are in f16, except for values of int8 and of 4 bits: their weights carry scales that f16 may not
// hold. With codes of 4 bits the same loads bring eight neighbours, of 32 dims of a row:
//   K   the eight are four pairs (j, j + 4) of k, of two products; every group of 64 dims has sums of its own, which
//       meet the scale of key and group, and the center times the sum of the query over the group, afterwards
//   V   the eight are four dims of two keys: dims j and j + 1 of lane g are rows g and g + 8 of a product. The weights
//       are scaled for each group, and the centers, times the weights, summed apart; so are the scaled weights alone,
//       by a product more, since the operands are codes raised by a constant
// kSwizzled: of codes of 4 bits and 128 dims, rows as the copy engine lays them in its swizzle of 64 bytes.
template <int D, int kKeys, class C, int kGroups, bool kSwizzled = false>
struct WarpColumns {
  static_assert(D % 16 == 0 && kKeys % 16 == 0);
  static constexpr int kUnits = kKeys / 16, kSteps = D / 16;
  static constexpr int kStride = kSwizzled ? stored<C>(D) : kRowStride<C, D>;  // values from row to row of K and V
  static constexpr bool kHalfValues = std::is_same_v<C, F8Code>;               // the weights are f16
  static constexpr bool kNibbles = kGroupScales<C>;
  // Whether what raised codes add is taken off the sums in the end, which takes more registers; else off each code.
  static constexpr bool kRaised = kNibbles && kGroups == 1;
  static constexpr int kDimGroups = kNibbles ? static_cast<int>(int4_groups(D)) : 1;
  static constexpr bool kKeepQ = D * kGroups <= 256;  // in registers; a larger Q is read again for every tile
  // The reference that weights are relative to may stay behind the maximum by so many powers of two: a weight is then
  // at most 64, and f16 ends at 65,504.
  static constexpr float kSlack = 6;
  using Scores = float[kUnits][kGroups][4];

  float o[kGroups][kSteps][4];
  // Of queries 2t and 2t + 1: the reference that weights are relative to, and this lane's part of the sum of weights.
  float m[kGroups][2], l[kGroups][2];
  uint32_t q[kGroups][kKeepQ ? kSteps : 1][2];
  const __nv_bfloat16* q_row[kGroups];  // of query g
  bool is_query[kGroups];               // false past the last, where q_row is any other
  int d;
  float code_factor;  // of codes of 4 bits: of what a product of codes is, to a score
  // Of codes of 4 bits, by group of dims: sums over queries 2t and 2t + 1, and this lane's part of what centers add.
  float q_sum[kNibbles ? kDimGroups : 1][kGroups][2], o_center[kNibbles ? kDimGroups : 1][kGroups][2];
  // What raised codes add to every sum over values, times -1: the lane has the whole of it.
  float o_raised[kRaised ? kDimGroups : 1][kGroups][4];

  // Asks for the queries at q_row, which arrive until finish_queries(); sums start at zero.
  __device__ __forceinline__ void init(int head_dim) {
    d = head_dim;
#pragma unroll
    for (int j = 0; j < kGroups; ++j) {
      m[j][0] = m[j][1] = kNoKeys;
      l[j][0] = l[j][1] = 0;
#pragma unroll
      for (int n = 0; n < kSteps; ++n)
#pragma unroll
        for (int i = 0; i < 4; ++i) o[j][n][i] = 0;
    }
    for_kept_q([&](int j, int k) { load_q(q[j][k], j, k); });
    for_center_sums([&](int g, int j, int c) { o_center[g][j][c] = 0; });
    for_raised_sums([&](int g, int j, int c) { o_raised[g][j][c] = o_raised[g][j][c + 2] = 0; });
  }
  // `scale`, `softcap`: of scores; codes of 4 bits take what finish_scores() multiplies by into their own factors.
  __device__ __forceinline__ void finish_queries(float scale, float softcap) {
    for_kept_q([&](int j, int k) { finish_q(q[j][k], j, k); });
    if constexpr (kNibbles) {
      const float factor = score_factor(scale, softcap);
      sum_queries();
      for_center_sums([&](int g, int j, int c) { q_sum[g][j][c] *= factor; });
      code_factor = kNibbleF16 * factor;
    }
  }
  template <class F>
  static __device__ __forceinline__ void for_raised_sums(F&& f) {
    if constexpr (kRaised) for_center_sums(f);
  }
  template <class F>
  static __device__ __forceinline__ void for_center_sums(F&& f) {
    if constexpr (kNibbles) {
#pragma unroll
      for (int g = 0; g < kDimGroups; ++g)
#pragma unroll
        for (int j = 0; j < kGroups; ++j)
#pragma unroll
          for (int c = 0; c < 2; ++c) f(g, j, c);
    }
  }
  __device__ __forceinline__ void sum_queries() {
    const int t = threadIdx.x % 4;
#pragma unroll
    for (int j = 0; j < kGroups; ++j)
#pragma unroll
      for (int g = 0; g < kDimGroups; ++g) {
        float sum = 0;
#pragma unroll
        for (int k = 4 * g; k < 4 * g + 4 && k < kSteps; ++k) {
          uint32_t b[2];
          load_q(b, j, k);
          finish_q(b, j, k);
          const float2 x = __half22float2(as_half2(b[0])), y = __half22float2(as_half2(b[1]));
          sum += (x.x + x.y) + (y.x + y.y) / kNibbleShift;
        }
        sum += __shfl_xor_sync(0xffffffffu, sum, 1);
        sum += __shfl_xor_sync(0xffffffffu, sum, 2);
#pragma unroll
        for (int c = 0; c < 2; ++c) q_sum[g][j][c] = __shfl_sync(0xffffffffu, sum, 4 * (2 * t + c));
      }
  }
  template <class F>
  static __device__ __forceinline__ void for_kept_q(F&& f) {
    if constexpr (kKeepQ) {
#pragma unroll
      for (int j = 0; j < kGroups; ++j)
#pragma unroll
        for (int k = 0; k < kSteps; ++k) f(j, k);
    }
  }

  // load_q() reads 16 dims of queries, and finish_q() makes them the B operand of a product. Where the row or the dims
  // do not exist, others are read and become zeros later: a condition for each load would hold the loads up.
  __device__ __forceinline__ void load_q(uint32_t (&b)[2], int j, int k) const {
    const int t = threadIdx.x % 4;
    if constexpr (kNibbles) {
      const __nv_bfloat16* from = q_row[j] + min(k / 2 * 32, d - 32) + 8 * t + k % 2 * 2;
      b[0] = *reinterpret_cast<const uint32_t*>(from), b[1] = *reinterpret_cast<const uint32_t*>(from + 4);
    } else if constexpr (kIsCode<C>) {
      const auto four = *reinterpret_cast<const uint2*>(q_row[j] + min(16 * k, d - 16) + 4 * t);
      b[0] = four.x, b[1] = four.y;
    } else {
#pragma unroll
      for (int i = 0; i < 2; ++i)
        b[i] = *reinterpret_cast<const uint32_t*>(q_row[j] + min(16 * k + 8 * i, d - 8) + 2 * t);
    }
  }
  __device__ __forceinline__ void finish_q(uint32_t (&b)[2], int j, int k) const {
    if constexpr (kNibbles) {  // dims 0 and 4, and 1 and 5, of those at hand
      const uint32_t first = __byte_perm(b[0], b[1], 0x5410), second = __byte_perm(b[0], b[1], 0x7632);
      b[0] = first, b[1] = second;
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      if constexpr (kIsCode<C>) b[i] = f16_of_bf16(b[i]);
      if constexpr (kNibbles)
        if (i == 1) b[i] = bits_of(__hmul2(as_half2(b[i]), __float2half2_rn(kNibbleShift)));
      if (!is_query[j] || 16 * k + (kIsCode<C> ? 0 : 8 * i) >= d) b[i] = 0;
    }
  }

  // s = K Q^T for the kKeys rows at k_sh. words [kKeys, kDimGroups]: scale and center of codes of 4 bits.
  __device__ __forceinline__ void scores(Scores& s, const C* k_sh, const float* words) {
    const int lane = threadIdx.x % 32;
    if constexpr (kNibbles)
      nibble_scores(s, k_sh, words);
    else
      plain_scores(s, k_sh + lane % 16 * kStride + lane / 16 * (16 / static_cast<int>(sizeof(C))));
  }
  __device__ __forceinline__ void plain_scores(Scores& s, const C* row) {
#pragma unroll
    for (int u = 0; u < kUnits; ++u) {
      float chain[2][kGroups][4] = {};  // two chains of products: their latency is what a step waits for
      for_operands<C, D, false, kRaised>(row + u * 16 * kStride,
                                         [&](int k, const uint32_t(&a)[4]) { add_scores(chain[k % 2], a, k); });
#pragma unroll
      for (int j = 0; j < kGroups; ++j)
#pragma unroll
        for (int i = 0; i < 4; ++i) s[u][j][i] = chain[0][j][i] + chain[1][j][i];
    }
  }
  // Where this lane's row of codes of 4 bits begins for ldmatrix, and how far its second half lies behind the first.
  static __device__ __forceinline__ const C* nibble_row(const C* tile, int& half_row) {
    const int lane = threadIdx.x % 32, row = lane % 16, piece = kSwizzled ? lane / 16 ^ row / 2 % 4 : lane / 16;
    half_row = kSwizzled && piece >= 2 ? -32 : 32;
    return tile + row * kStride + piece * 16;
  }
  __device__ __forceinline__ void nibble_scores(Scores& s, const C* k_sh, const float* words) {
    const int g = threadIdx.x % 32 / 4;
    int half_row;
    const C* row = nibble_row(k_sh, half_row);
#pragma unroll
    for (int u = 0; u < kUnits; ++u) {
      float chain[kDimGroups][kGroups][4] = {};
      for_operands<C, D, false, kRaised>(
          row + u * 16 * kStride, [&](int k, const uint32_t(&a)[4]) { add_scores(chain[k / 4], a, k); }, half_row);
#pragma unroll
      for (int j = 0; j < kGroups; ++j)
#pragma unroll
        for (int i = 0; i < 4; ++i) s[u][j][i] = 0;
#pragma unroll
      for (int half = 0; half < 2; ++half)
#pragma unroll
        for (int n = 0; n < kDimGroups; ++n) {
          const uint32_t word = __float_as_uint(words[(u * 16 + half * 8 + g) * kDimGroups + n]);
          const float scale = nibble_rows::scale_of(word), zero = fmaf(-8.f, scale, nibble_rows::center_of(word));
          const float of_code = scale * code_factor;
#pragma unroll
          for (int j = 0; j < kGroups; ++j)
#pragma unroll
            for (int c = 0; c < 2; ++c) {
              float& x = s[u][j][2 * half + c];
              x = fmaf(of_code, chain[n][j][2 * half + c], fmaf(zero, q_sum[n][j][c], x));
            }
        }
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
      mma_of<kIsCode<C>>(s[j], a, b[0], b[1]);
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

  // cuda::finish_scores() over this lane's scores; `position`: of this lane's queries.
  __device__ __forceinline__ void finish_scores(Scores& s, const float* key_scales, float scale, float softcap,
                                                bool masked, int first_key, const int (&position)[kGroups][2],
                                                int window) {
    const auto with_positions = [&](auto&& f) {
      for_scores(s, [&](float& x, int key, int j, int c) { f(x, key, position[j][c]); });
    };
    cuda::finish_scores<C>(with_positions, key_scales, scale, softcap, masked, first_key, window);
  }

  // Turns s into weights. The reference follows the maximum only when that has run away from it, so that most steps
  // neither ask the other lanes for their maxima nor rescale what was summed before.
  __device__ __forceinline__ void softmax(Scores& s) {
    bool behind = false;
    for_scores(s, [&](float& x, int, int j, int c) { behind |= x > m[j][c] + kSlack; });
    if (__any_sync(0xffffffffu, behind)) follow_maximum(s);
    for_scores(s, [&](float& x, int, int j, int c) {
      x = exp2_fast(x - m[j][c]);
      l[j][c] += x;
    });
  }
  __device__ __forceinline__ void follow_maximum(const Scores& s) {
#pragma unroll
    for (int j = 0; j < kGroups; ++j)
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        float top = m[j][c];
#pragma unroll
        for (int u = 0; u < kUnits; ++u) top = fmaxf(top, fmaxf(s[u][j][c], s[u][j][c + 2]));
#pragma unroll
        for (int lane = 4; lane < 32; lane *= 2) top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, lane));
        const float rescale = exp2_fast(m[j][c] - top);
        m[j][c] = top;
        l[j][c] *= rescale;
        for_center_sums([&](int g, int of_j, int of_c) {
          if (of_j == j && of_c == c) o_center[g][j][c] *= rescale;
        });
        for_raised_sums([&](int g, int of_j, int of_c) {
          if (of_j == j && of_c == c) o_raised[g][j][c] *= rescale;
        });
#pragma unroll
        for (int n = 0; n < kSteps; ++n) {
          o[j][n][c] *= rescale;
          o[j][n][c + 2] *= rescale;
        }
      }
  }

  // o += s V for the kKeys rows at v_sh. value_scales [kKeys]: of codes with a scale per token; s comes out multiplied
  // by them. Of codes of 4 bits [kKeys, kDimGroups] words.
  __device__ __forceinline__ void add_values(Scores& s, const float* value_scales, const C* v_sh) {
    if constexpr (kNibbles)
      add_nibble_values(s, value_scales, v_sh);
    else
      add_plain_values(s, value_scales, v_sh);
  }
  __device__ __forceinline__ void add_plain_values(Scores& s, const float* value_scales, const C* v_sh) {
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
          b[j][i] = transposed(pack_weights<kHalfValues>(x, y));  // keys as rows become queries as columns
        }
      for_operands<C, D, true, kRaised>(row + u * 16 * kStride, [&](int n, const uint32_t(&a)[4]) {
#pragma unroll
        for (int j = 0; j < kGroups; ++j) mma_of<kHalfValues>(o[j][n], a, b[j][0], b[j][1]);
      });
    }
  }

  __device__ __forceinline__ void add_nibble_values(const Scores& s, const float* words, const C* v_sh) {
    const int g = threadIdx.x % 32 / 4;
    int half_row;
    const C* row = nibble_row(v_sh, half_row);
#pragma unroll
    for (int u = 0; u < kUnits; ++u) {
      uint32_t b[kDimGroups][kGroups][2];
#pragma unroll
      for (int n = 0; n < kDimGroups; ++n)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const uint32_t word = __float_as_uint(words[(u * 16 + half * 8 + g) * kDimGroups + n]);
          const float scale = nibble_rows::scale_of(word), center = nibble_rows::center_of(word);
#pragma unroll
          for (int j = 0; j < kGroups; ++j) {
            const float x = s[u][j][2 * half], y = s[u][j][2 * half + 1];
            b[n][j][half] = transposed(pack_weights<false>(x * scale, y * scale));
            o_center[n][j][0] = fmaf(x, center, o_center[n][j][0]);
            o_center[n][j][1] = fmaf(y, center, o_center[n][j][1]);
          }
        }
      for_operands<C, D, true, kRaised>(
          row + u * 16 * kStride,
          [&](int n, const uint32_t(&a)[4]) {
#pragma unroll
            for (int j = 0; j < kGroups; ++j) mma_of<false>(o[j][n], a, b[n / 4][j][0], b[n / 4][j][1]);
          },
          half_row);
      constexpr uint32_t kLower = 0xc308c308u;  // -136
      const uint32_t lower[4] = {kLower, kLower, kLower, kLower};
      if constexpr (kRaised)
#pragma unroll
        for (int n = 0; n < kDimGroups; ++n)
#pragma unroll
          for (int j = 0; j < kGroups; ++j) mma_of<false>(o_raised[n][j], lower, b[n][j][0], b[n][j][1]);
    }
  }

  // Stores o times `scale` at `to` [8 * kGroups, stride], f32.
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
          if constexpr (kNibbles) {
            float center = o_center[n / 4][j][c];
            if constexpr (kRaised) center += o_raised[n / 4][j][c];
            *reinterpret_cast<float2*>(row + n / 2 * 32 + 4 * g + n % 2 * 2) = {x + center, y + center};
          } else if constexpr (kIsCode<C>) {
            *reinterpret_cast<float2*>(row + n * 16 + 2 * g) = {x, y};
          } else {
            row[n * 16 + g] = x;
            row[n * 16 + 8 + g] = y;
          }
        }
      }
  }

  // Puts the whole sums of weights, and of what centers add, on every lane that holds part of them.
  __device__ __forceinline__ void finish_sums() {
    for_center_sums([&](int g, int j, int c) {
#pragma unroll
      for (int lane = 4; lane < 32; lane *= 2)
        o_center[g][j][c] += __shfl_xor_sync(0xffffffffu, o_center[g][j][c], lane);
    });
#pragma unroll
    for (int j = 0; j < kGroups; ++j)
#pragma unroll
      for (int c = 0; c < 2; ++c)
#pragma unroll
        for (int lane = 4; lane < 32; lane *= 2) l[j][c] += __shfl_xor_sync(0xffffffffu, l[j][c], lane);
  }
};

}  // namespace fewbit::cuda::attention_columns
