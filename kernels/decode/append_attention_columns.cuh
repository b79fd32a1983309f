#pragma once
// One warp's step of attention of up to four query rows over 32 keys of 4 bits and 128 dims, like
// kernels/attention/attention_columns.cuh with fewer instructions. A code is a byte of an operand, and scores are sums
// of integers: a query is a number of 16 bits whose high byte stands in one of the columns 0 to 3 of the products and
// its low byte in one of the columns 4 to 7. What a lane's columns give is then half of a score for each of the two
// units of 16 keys; lanes t and t + 2 exchange, so that with lane = 4 g + t a lane holds the scores of keys g and g + 8
// of unit t / 2 for queries 2 (t % 2) and the next. Codes of values are operands as they lie as well: as bf16 they are
// subnormal numbers.
#include "kernels/attention/attention_columns.cuh"

namespace fewbit::cuda::append_decode {

// Two keys are a row of 128 bytes in the copy engine's swizzle.
template <int D, int kKeys, class C>
struct ByteColumns {
  static_assert(D == 128 && kKeys == 32 && kGroupScales<C>);
  static constexpr int kSteps = D / 16, kGroups = 2, kStride = D / 2;  // groups: of 64 dims
  static constexpr float kSlack = 6;
  // A sum of codes times bytes added to the integer of this float is the float of both: 15 * 128 * 64 < 2^22.
  static constexpr int kMagic = 0x4b400000;
  // In the lowest four bits of a bf16 a code is itself times 2^-133, in the next ones times 2^-129. Weights are raised
  // by kRaise, so that products are ordinary numbers; there is room for scales of values of up to 2^21.
  static constexpr float kRaise = 0x1p100f, kOfLow = 0x1p33f, kOfHigh = 0x1p29f;
  using Scores = float[4];

  float o[kSteps][4];
  float m[1][2], l[1][2];
  uint32_t q[4][2];
  const __nv_bfloat16* q_row[1];  // of query g % 4
  bool is_query[1];
  float of_own[2], of_other[2];  // what the lane's and its partner's sums are multiplied by, to a score
  float q_sum[kGroups][2], o_center[kGroups][2], o_lower[kGroups][4];

  __device__ __forceinline__ void init(int) {
    m[0][0] = m[0][1] = kNoKeys, l[0][0] = l[0][1] = 0;
#pragma unroll
    for (int n = 0; n < kSteps; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) o[n][i] = 0;
#pragma unroll
    for (int n = 0; n < kGroups; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) o_lower[n][i] = o_center[n][i % 2] = 0;
  }

  // Queries, in shared memory, as two bytes each.
  __device__ __forceinline__ void finish_queries(float scale, float softcap) {
    const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    float x[4][8], most = 0, sum[kGroups] = {};
    bool finite = true;
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const uint4 eight = *reinterpret_cast<const uint4*>(q_row[0] + 32 * k + 8 * t);
      const uint32_t two[4] = {eight.x, eight.y, eight.z, eight.w};
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        x[k][i] = is_query[0] ? __uint_as_float(i % 2 == 0 ? two[i / 2] << 16 : two[i / 2] & 0xffff0000u) : 0.f;
        most = fmaxf(most, fabsf(x[k][i])), sum[k / 2] += x[k][i];
        finite = finite && isfinite(x[k][i]);
      }
    }
#pragma unroll
    for (int other = 1; other < 4; other *= 2) {
      most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, other));
#pragma unroll
      for (int n = 0; n < kGroups; ++n) sum[n] += __shfl_xor_sync(0xffffffffu, sum[n], other);
    }
    constexpr float kMost = 127 * 256;
    const float up = most > 0 ? kMost / most : 0.f;
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      q[k][0] = q[k][1] = 0;
#pragma unroll
      for (int i = 0; i < 8; ++i) {
        const int whole = __float2int_rn(x[k][i] * up), high = (whole + 128) >> 8, low = whole - (high << 8);
        q[k][i % 2] |= static_cast<uint32_t>((g < 4 ? high : low) & 255) << (i / 2 * 8);
      }
    }
    const float factor = score_factor(scale, softcap), down = finite ? most / kMost : __uint_as_float(0x7fc00000u);
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      const int from = 4 * (2 * (t % 2) + c);
      const float of_code = __shfl_sync(0xffffffffu, down, from) * factor;
      of_own[c] = t < 2 ? 256 * of_code : of_code, of_other[c] = t < 2 ? of_code : 256 * of_code;
#pragma unroll
      for (int n = 0; n < kGroups; ++n) q_sum[n][c] = __shfl_sync(0xffffffffu, sum[n], from) * factor;
    }
  }

  // Where this lane's row begins for ldmatrix, and how far its second half lies behind the first, in the swizzle.
  static __device__ __forceinline__ const C* row_of(const C* tile, int& half_row) {
    const int lane = threadIdx.x % 32, row = lane % 16;
    const int piece = (row % 2 * 4 + lane / 16) ^ row / 2;
    half_row = (piece & 2) != 0 ? -32 : 32;
    return tile + row / 2 * 2 * kStride + piece * 16;
  }
  // The words of a key's two groups.
  static __device__ __forceinline__ float2 words_of(const float* words, int key) {
    return *reinterpret_cast<const float2*>(words + key * kGroups);
  }

  __device__ __forceinline__ void scores(Scores& s, const C* k_sh, const float* words) {
    const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    int half_row;
    const C* row = row_of(k_sh, half_row);
    float r[2][4];
#pragma unroll
    for (int u = 0; u < 2; ++u) {
      int chain[kGroups][4];
#pragma unroll
      for (int n = 0; n < kGroups; ++n) {
        uint32_t w[4];
        ldmatrix(w, row + u * 16 * kStride + n * half_row);
#pragma unroll
        for (int i = 0; i < 4; ++i) chain[n][i] = kMagic;
#pragma unroll
        for (int k = 0; k < 2; ++k) {
          constexpr uint32_t kLow = 0x0f0f0f0fu;
          const uint32_t a[4] = {w[2 * k] & kLow, w[2 * k + 1] & kLow, w[2 * k] >> 4 & kLow, w[2 * k + 1] >> 4 & kLow};
          mma_u8(chain[n], a, q[2 * n + k][0], q[2 * n + k][1]);
        }
      }
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const float2 word = words_of(words, u * 16 + half * 8 + g);
        const float scale0 = nibble_rows::scale_of(__float_as_uint(word.x)),
                    scale1 = nibble_rows::scale_of(__float_as_uint(word.y));
#pragma unroll
        for (int i = 2 * half; i < 2 * half + 2; ++i)
          r[u][i] = fmaf(scale0, __int_as_float(chain[0][i]) - __int_as_float(kMagic),
                         scale1 * (__int_as_float(chain[1][i]) - __int_as_float(kMagic)));
      }
    }
    const bool upper = t >= 2;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float2 word = words_of(words, t / 2 * 16 + half * 8 + g);
      const auto zero_of = [](float two) {
        const uint32_t bits = __float_as_uint(two);
        return fmaf(-8.f, nibble_rows::scale_of(bits), nibble_rows::center_of(bits));
      };
      const float zero0 = zero_of(word.x), zero1 = zero_of(word.y);
#pragma unroll
      for (int c = 0; c < 2; ++c) {
        const int i = 2 * half + c;
        const float own = upper ? r[1][i] : r[0][i];
        const float other = __shfl_xor_sync(0xffffffffu, upper ? r[0][i] : r[1][i], 2);
        s[i] = fmaf(of_own[c], own, fmaf(of_other[c], other, fmaf(zero0, q_sum[0][c], zero1 * q_sum[1][c])));
      }
    }
  }

  template <class F>
  static __device__ __forceinline__ void for_scores(Scores& s, F&& f) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < 4; ++i) f(s[i], lane % 4 / 2 * 16 + i / 2 * 8 + lane / 4, i % 2);
  }
  __device__ __forceinline__ void finish_scores(Scores& s, const float* words, float scale, float softcap, bool masked,
                                                int first_key, const int (&position)[1][2], int window) {
    const auto with_positions = [&](auto&& f) {
      for_scores(s, [&](float& x, int key, int c) { f(x, key, position[0][c]); });
    };
    cuda::finish_scores<C>(with_positions, words, scale, softcap, masked, first_key, window);
  }

  __device__ __forceinline__ void softmax(Scores& s) {
    bool behind = false;
    for_scores(s, [&](float& x, int, int c) { behind |= x > m[0][c] + kSlack; });
    if (__any_sync(0xffffffffu, behind)) follow_maximum(s);
    for_scores(s, [&](float& x, int, int c) {
      x = exp2_fast(x - m[0][c]);
      l[0][c] += x;
    });
  }
  __device__ __forceinline__ void follow_maximum(const Scores& s) {
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      float top = fmaxf(m[0][c], fmaxf(s[c], s[c + 2]));
#pragma unroll
      for (int lane = 2; lane < 32; lane *= 2) top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, lane));
      const float rescale = exp2_fast(m[0][c] - top);
      m[0][c] = top;
      l[0][c] *= rescale;
#pragma unroll
      for (int n = 0; n < kGroups; ++n)
        o_center[n][c] *= rescale, o_lower[n][c] *= rescale, o_lower[n][c + 2] *= rescale;
#pragma unroll
      for (int n = 0; n < kSteps; ++n) o[n][c] *= rescale, o[n][c + 2] *= rescale;
    }
  }

  __device__ __forceinline__ void add_values(const Scores& s, const float* words, const C* v_sh) {
    const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    int half_row;
    const C* row = row_of(v_sh, half_row);
    uint32_t b[2][kGroups][2];  // of the two units; only their first four columns are queries
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float2 word = words_of(words, t / 2 * 16 + half * 8 + g);
      const float x = s[2 * half], y = s[2 * half + 1];
#pragma unroll
      for (int n = 0; n < kGroups; ++n) {
        const uint32_t bits = __float_as_uint(n == 0 ? word.x : word.y);
        const float scale = nibble_rows::scale_of(bits), center = nibble_rows::center_of(bits);
        const float raised = scale * kRaise;
        b[0][n][half] = transposed(pack_bf16(x * raised, y * raised));
        b[1][n][half] = __shfl_xor_sync(0xffffffffu, b[0][n][half], 16);
        o_center[n][0] = fmaf(x, center, o_center[n][0]);
        o_center[n][1] = fmaf(y, center, o_center[n][1]);
      }
    }
    constexpr uint32_t kLow = 0x000f000fu, kHigh = 0x00f000f0u, kLower = 0x80088008u;  // the last: -8
    const uint32_t lower[4] = {kLower, kLower, kLower, kLower};
#pragma unroll
    for (int u = 0; u < 2; ++u)
#pragma unroll
      for (int n = 0; n < kGroups; ++n) {
        uint32_t w[4];
        ldmatrix_transposed(w, row + u * 16 * kStride + n * half_row);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const uint32_t x = w[i / 2 * 2] >> (i % 2 * 8), y = w[i / 2 * 2 + 1] >> (i % 2 * 8);
          const uint32_t a[4] = {x & kLow, x & kHigh, y & kLow, y & kHigh};
          mma_bf16(o[4 * n + i], a, b[u][n][0], b[u][n][1]);
        }
        mma_bf16(o_lower[n], lower, b[u][n][0], b[u][n][1]);
      }
  }

  __device__ __forceinline__ void finish_sums() {
#pragma unroll
    for (int c = 0; c < 2; ++c)
#pragma unroll
      for (int lane = 2; lane < 32; lane *= 2) {
        l[0][c] += __shfl_xor_sync(0xffffffffu, l[0][c], lane);
#pragma unroll
        for (int n = 0; n < kGroups; ++n) o_center[n][c] += __shfl_xor_sync(0xffffffffu, o_center[n][c], lane);
      }
  }
  // Stores o at `to` [8, stride], f32; rows past the fourth are nobody's.
  __device__ __forceinline__ void store(float* to, int stride, float) const {
    const int g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    if (t >= 2) return;
#pragma unroll
    for (int c = 0; c < 2; ++c) {
      float* row = to + (2 * t + c) * stride;
#pragma unroll
      for (int n = 0; n < kSteps; ++n) {
        const float more = fmaf(o_lower[n / 4][c], kOfLow, o_center[n / 4][c]);
        *reinterpret_cast<float2*>(row + n / 2 * 32 + 4 * g + n % 2 * 2) = {fmaf(o[n][c], kOfLow, more),
                                                                            fmaf(o[n][c + 2], kOfHigh, more)};
      }
    }
  }
};

}  // namespace fewbit::cuda::append_decode
