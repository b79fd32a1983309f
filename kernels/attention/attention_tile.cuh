#pragma once
// What the attention kernels share: where the operands lie, and one warp's step of attention with an online
// softmax: 16 query rows against kKeys keys that stand in shared memory. Scores live in the base-2
// logarithm's domain.
#include "kernels/attention/kv_codes.cuh"
#include "kernels/attention/softmax.cuh"
#include "kernels/device/mma.cuh"

namespace fewbit::cuda {

// Query row i of sequence s stands at position positions[s * len + i], or i where `positions` is null, and
// sees keys [0, position], cut by the window. Key j of kv head h lies at k + s * kv_seq + h * kv_head + j *
// kv_token. C is what keys and values are stored as; codes of kv head h have the scale scales[h], or those of
// token j of sequence s scales[(s * kv_heads + h) * keys + j].
template <class T, class C = T>
struct AttentionSource {
  const T* q;  // [seqs * len, heads * d]
  const C* k;
  const C* v;
  const float* k_scales;  // null without codes
  const float* v_scales;
  const int32_t* positions;  // [seqs * len] or null
  T* out;                    // like q
  int seqs, len, heads, kv_heads, d;
  int64_t kv_seq, kv_head, kv_token;  // strides in values
  int keys;                           // keys a sequence has room for
  int window;                         // 0: none
  float scale, softcap;

  // Where the scales of a kv head begin, as an offset into k_scales and v_scales.
  __device__ __forceinline__ int64_t scales_of(int seq, int kv_head) const {
    return kTokenScales<C> ? (static_cast<int64_t>(seq) * kv_heads + kv_head) * keys : kv_head;
  }
};

// D: head_dim rounded up to an instantiation; columns past the true one hold zeros. Rows of shared memory are
// padded to an odd multiple of 16 bytes, so that the eight rows of an ldmatrix fall into different banks.
template <class C, int D>
inline constexpr int kRowStride = D * sizeof(C) % 32 == 0 ? D + 16 / static_cast<int>(sizeof(C)) : D;

// Codes (C of one byte) take the fragments of an ldmatrix of pairs of codes: a lane holds four neighbours
// where bf16 has two. For K the four are two neighbouring k of one product, which only asks that Q be read in
// the same order; for V they belong to two products, whose columns are the even and the odd dims. Products
// with codes are in f16, but for the values of int8.
template <int D, int kKeys, class C = __nv_bfloat16>
struct WarpAttention {
  static_assert(D % 16 == 0 && kKeys % (kIsCode<C> ? 32 : 16) == 0);
  static constexpr int kStride = kRowStride<__nv_bfloat16, D>;  // values from row to row of Q in shared memory
  static constexpr int kKvStride = kRowStride<C, D>;
  static constexpr bool kHalfValues = std::is_same_v<C, F8Code>;  // the weights are f16
  static constexpr bool kKeepQ = D <= 128;                        // else Q is read again for every tile: registers
  static constexpr int kQ = kKeepQ ? D / 16 : 1;

  float o[D / 8][4];  // the mma C layout: rows g and g + 8
  float m[2], l[2];   // running maximum (of the whole row) and sum (this lane's part of it)
  uint32_t qf[kQ][4];
  const __nv_bfloat16* q_sh;  // this warp's 16 rows

  __device__ __forceinline__ void init(const __nv_bfloat16* q_rows) {
    q_sh = q_rows;
    m[0] = m[1] = -INFINITY;
    l[0] = l[1] = 0;
#pragma unroll
    for (int n = 0; n < D / 8; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) o[n][i] = 0;
    if constexpr (kKeepQ) {
#pragma unroll
      for (int k = 0; k < D / 16; ++k) load_q(qf[k], k);
    }
  }

  __device__ __forceinline__ void load_q(uint32_t (&f)[4], int k) const {
    const int lane = threadIdx.x % 32;
    if constexpr (kIsCode<C>) {
      const __nv_bfloat16* row = q_sh + lane / 4 * kStride + k * 16 + lane % 4 * 4;
      const auto low = *reinterpret_cast<const uint2*>(row);
      const auto high = *reinterpret_cast<const uint2*>(row + 8 * kStride);
      f[0] = to_f16(low.x), f[1] = to_f16(high.x), f[2] = to_f16(low.y), f[3] = to_f16(high.y);
    } else {
      ldmatrix(f, q_sh + (lane % 16) * kStride + k * 16 + lane / 16 * 8);
    }
  }

  static __device__ __forceinline__ uint32_t to_f16(uint32_t bf16s) {
    const float2 v = __bfloat1622float2(*reinterpret_cast<const __nv_bfloat162*>(&bf16s));
    return pack_f16(v.x, v.y);
  }

  // s = Q K^T for the kKeys rows at k_sh.
  __device__ __forceinline__ void scores(float (&s)[kKeys / 8][4], const C* k_sh) {
#pragma unroll
    for (int n = 0; n < kKeys / 8; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) s[n][i] = 0;
#pragma unroll
    for (int k = 0; k < D / 16; ++k) {
      if constexpr (!kKeepQ) load_q(qf[0], k);
      add_scores(s, qf[kKeepQ ? k : 0], k_sh + k * 16);
    }
  }

  // s += Q K^T over the 16 dims at k_sh.
  __device__ __forceinline__ void add_scores(float (&s)[kKeys / 8][4], const uint32_t (&q)[4], const C* k_sh) {
    const int lane = threadIdx.x % 32;
    uint32_t b[4];
    if constexpr (kIsCode<C>) {
#pragma unroll
      for (int n = 0; n < kKeys / 32; ++n) {
        ldmatrix(b, k_sh + (n * 32 + lane) * kKvStride);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          uint32_t first, second;
          key_codes(C{}, b[i], first, second);
          mma_f16(s[4 * n + i], q, first, second);
        }
      }
    } else {
      const C* row = k_sh + (lane / 16 * 8 + lane % 8) * kKvStride + lane / 8 % 2 * 8;
#pragma unroll
      for (int n = 0; n < kKeys / 16; ++n) {
        ldmatrix(b, row + n * 16 * kKvStride);
        mma_bf16(s[2 * n], q, b[0], b[1]);
        mma_bf16(s[2 * n + 1], q, b[2], b[3]);
      }
    }
  }

  // Scales (and caps) the scores; keys that a row does not see become minus infinity where `masked`.
  // key_scales [kKeys]: of codes with a scale per token.
  __device__ __forceinline__ void finish_scores(float (&s)[kKeys / 8][4], const float* key_scales, float scale,
                                                float softcap, bool masked, int first_key, const int (&position)[2],
                                                int window) {
    const int t = threadIdx.x % 4;
    const auto for_all = [&](auto&& f) {
#pragma unroll
      for (int n = 0; n < kKeys / 8; ++n)
#pragma unroll
        for (int i = 0; i < 4; ++i) f(s[n][i], n * 8 + 2 * t + i % 2, position[i / 2]);
    };
    const float by = softcap > 0 ? scale / softcap : scale * kLog2e;
    for_all([&](float& x, int key, int) { x *= kTokenScales<C> ? by * key_scales[key] : by; });
    if (softcap > 0) for_all([&](float& x, int, int) { x = softcap * kLog2e * tanhf(x); });
    if (!masked) return;
    for_all([&](float& x, int key, int p) {
      if (first_key + key > p || (window > 0 && first_key + key <= p - window)) x = -INFINITY;
    });
  }

  // Turns s into weights about the new maximum and scales what was summed before.
  __device__ __forceinline__ void softmax(float (&s)[kKeys / 8][4]) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float top = m[r];
#pragma unroll
      for (int n = 0; n < kKeys / 8; ++n) top = fmaxf(top, fmaxf(s[n][2 * r], s[n][2 * r + 1]));
      top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 1));
      top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 2));
      const float about = top == -INFINITY ? 0.f : top;  // a row that has seen no key yet
      const float keep = exp2_fast(m[r] - about);
      float sum = 0;
#pragma unroll
      for (int n = 0; n < kKeys / 8; ++n) {
#pragma unroll
        for (int i = 2 * r; i < 2 * r + 2; ++i) {
          s[n][i] = exp2_fast(s[n][i] - about);
          sum += s[n][i];
        }
      }
      m[r] = top;
      l[r] = l[r] * keep + sum;
#pragma unroll
      for (int n = 0; n < D / 8; ++n) {
        o[n][2 * r] *= keep;
        o[n][2 * r + 1] *= keep;
      }
    }
  }

  // o += s V for the kKeys rows at v_sh; value_scales like key_scales. Leaves s scaled.
  __device__ __forceinline__ void add_values(float (&s)[kKeys / 8][4], const float* value_scales, const C* v_sh) {
    if constexpr (kTokenScales<C>) {
#pragma unroll
      for (int n = 0; n < kKeys / 8; ++n)
#pragma unroll
        for (int i = 0; i < 4; ++i) s[n][i] *= value_scales[n * 8 + threadIdx.x % 4 * 2 + i % 2];
    }
    const int lane = threadIdx.x % 32;
    uint32_t a[4], b[4];
    if constexpr (kIsCode<C>) {
      const C* row = v_sh + lane * kKvStride;
#pragma unroll
      for (int k = 0; k < kKeys / 32; ++k) {
        uint32_t more[4];
        weights(a, s, 2 * k);
        weights(more, s, 2 * k + 1);
#pragma unroll
        for (int n = 0; n < D / 16; ++n) {
          ldmatrix_transposed(b, row + k * 32 * kKvStride + n * 16);
          uint32_t even[4], odd[4];
#pragma unroll
          for (int i = 0; i < 4; ++i) value_codes(C{}, b[i], even[i], odd[i]);
          mma_values(o[2 * n], a, even[0], even[1]);
          mma_values(o[2 * n + 1], a, odd[0], odd[1]);
          mma_values(o[2 * n], more, even[2], even[3]);
          mma_values(o[2 * n + 1], more, odd[2], odd[3]);
        }
      }
    } else {
      const C* row = v_sh + (lane % 16) * kKvStride + lane / 16 * 8;
#pragma unroll
      for (int k = 0; k < kKeys / 16; ++k) {
        weights(a, s, k);
#pragma unroll
        for (int n = 0; n < D / 16; ++n) {
          ldmatrix_transposed(b, row + k * 16 * kKvStride + n * 16);
          mma_values(o[2 * n], a, b[0], b[1]);
          mma_values(o[2 * n + 1], a, b[2], b[3]);
        }
      }
    }
  }

  // The weights of keys [16 k, 16 k + 16) as the A operand of the next product, whose layout is the C layout
  // of s.
  static __device__ __forceinline__ void weights(uint32_t (&a)[4], const float (&s)[kKeys / 8][4], int k) {
    const auto pack = [](float x, float y) { return kHalfValues ? pack_f16(x, y) : pack_bf16(x, y); };
    a[0] = pack(s[2 * k][0], s[2 * k][1]);
    a[1] = pack(s[2 * k][2], s[2 * k][3]);
    a[2] = pack(s[2 * k + 1][0], s[2 * k + 1][1]);
    a[3] = pack(s[2 * k + 1][2], s[2 * k + 1][3]);
  }
  static __device__ __forceinline__ void mma_values(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
    if constexpr (kHalfValues)
      mma_f16(c, a, b0, b1);
    else
      mma_bf16(c, a, b0, b1);
  }

  // Calls f(column, x, y) for the pairs of neighbouring columns that this lane holds of row g (r = 0) or g + 8
  // (r = 1).
  template <class F>
  __device__ __forceinline__ void for_pairs(int r, F&& f) const {
    const int t = threadIdx.x % 4;
#pragma unroll
    for (int n = 0; n < D / 8; n += 2) {
      if constexpr (kIsCode<C>) {
        f(n * 8 + 4 * t, o[n][2 * r], o[n + 1][2 * r]);
        f(n * 8 + 4 * t + 2, o[n][2 * r + 1], o[n + 1][2 * r + 1]);
      } else {
        f(n * 8 + 2 * t, o[n][2 * r], o[n][2 * r + 1]);
        f(n * 8 + 8 + 2 * t, o[n + 1][2 * r], o[n + 1][2 * r + 1]);
      }
    }
  }

  // The whole row's sum on every lane that holds part of the row.
  __device__ __forceinline__ void finish_sums() {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      l[r] += __shfl_xor_sync(0xffffffffu, l[r], 1);
      l[r] += __shfl_xor_sync(0xffffffffu, l[r], 2);
    }
  }
};

// The scale that all codes of a kv head share; 1 where there is none.
template <class C>
__device__ __forceinline__ float static_scale(const float* scales, int64_t at) {
  if constexpr (kIsCode<C> && !kTokenScales<C>) return scales[at];
  return 1.f;
}

// Which keys a set of rows sees together: the smallest and the largest position among them.
struct KeyRange {
  int low, high;   // positions
  int begin, end;  // keys [begin, end)
};
// `position` of this lane's rows of the set, or -1; the same result on every lane.
__device__ __forceinline__ KeyRange key_range(int position_a, int position_b, int window, int keys) {
  const auto low_of = [](int p) { return p < 0 ? 0x7fffffff : p; };
  int low = min(low_of(position_a), low_of(position_b)), high = max(position_a, position_b);
  for (int lane = 16; lane > 0; lane /= 2) {
    low = min(low, __shfl_xor_sync(0xffffffffu, low, lane));
    high = max(high, __shfl_xor_sync(0xffffffffu, high, lane));
  }
  return {low, high, window > 0 ? max(0, low - window + 1) : 0, min(high + 1, keys)};
}

// Of two sets of rows; one of them may have no row.
__device__ __forceinline__ KeyRange joined(const KeyRange& a, const KeyRange& b, int window) {
  const int low = min(a.low, b.low), high = max(a.high, b.high);
  return {low, high, window > 0 ? max(0, low - window + 1) : 0, max(a.end, b.end)};
}

// Copies kRows rows of d values (zeros up to D, and for rows that `source` gives no address) into shared
// memory, kRowStride apart. source(row) returns a pointer or null; `any` is an address that is always mapped.
template <int D, int kRows, int kThreads, class C, class F>
__device__ __forceinline__ void copy_rows(C* to, int thread, int d, const C* any, F source) {
  constexpr int kPiece = 16 / static_cast<int>(sizeof(C)), kChunks = D / kPiece;
#pragma unroll
  for (int base = 0; base < kRows * kChunks; base += kThreads) {
    const int c = base + thread;
    if (kRows * kChunks % kThreads != 0 && c >= kRows * kChunks) break;
    const int row = c / kChunks, col = c % kChunks * kPiece;
    const C* from = source(row);
    const bool valid = from != nullptr && col < d;
    cp_async16(to + row * kRowStride<C, D> + col, valid ? from + col : any, valid);
  }
}

// Copies the scales of keys [first, first + kKeys) to `to` [2, kKeys]: of keys, then of values. Zeros from
// `end` on.
template <int kKeys, int kThreads>
__device__ __forceinline__ void copy_scales(float* to, int thread, const float* k_scales, const float* v_scales,
                                            int first, int end) {
#pragma unroll
  for (int base = 0; base < 2 * kKeys; base += kThreads) {
    const int i = base + thread, key = first + i % kKeys;
    if (2 * kKeys % kThreads != 0 && i >= 2 * kKeys) break;
    const float* from = i < kKeys ? k_scales : v_scales;
    cp_async4(to + i, key < end ? from + key : from, key < end);
  }
}

}  // namespace fewbit::cuda
