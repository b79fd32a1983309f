#pragma once
// One warp's step of the flash kernel: 16 query rows against a tile of kKeys keys and values in shared memory, with the
// online softmax of FlashAttention-2 (Dao, 2023, section 3.1). Scores live in the domain of the base-2 logarithm. With
// lane = 4 g + t a lane holds, of every eight keys, the scores of keys 2t and 2t + 1 for rows g and g + 8 (the mma C
// layout, kernels/device/mma.cuh).
#include "kernels/attention/kv_tiles.cuh"

namespace fewbit::cuda::attention_flash {

// C: what keys and values are stored as. Codes, of one byte, come by an ldmatrix that takes pairs of codes for 16-bit
// values, so that a lane holds four neighbouring codes where it would hold two bf16:
//   K   the four are two neighbouring pairs of k of one product, which only asks that Q be read in the same order
//   V   the four belong to two products, whose columns are the even and the odd dims
// Products with codes are in f16, except for int8 values: their weights carry scales that f16 may not hold.
template <int D, int kKeys, class C = __nv_bfloat16>
struct WarpAttention {
  static_assert(D % 16 == 0 && kKeys % (kIsCode<C> ? 32 : 16) == 0);
  static constexpr int kStride = kRowStride<__nv_bfloat16, D>;  // values from row to row of Q in shared memory
  static constexpr int kKvStride = kRowStride<C, D>;
  static constexpr bool kHalfValues = std::is_same_v<C, F8Code>;  // the weights are f16
  static constexpr bool kKeepQ = D <= 128;  // in registers; a larger Q does not fit and is read again for every tile
  static constexpr int kQ = kKeepQ ? D / 16 : 1;

  float o[D / 8][4];  // the output before division by l, in the mma C layout: rows g and g + 8
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
      f[0] = f16_of_bf16(low.x), f[1] = f16_of_bf16(high.x), f[2] = f16_of_bf16(low.y), f[3] = f16_of_bf16(high.y);
    } else {
      ldmatrix(f, q_sh + (lane % 16) * kStride + k * 16 + lane / 16 * 8);
    }
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

  // cuda::finish_scores() over this lane's scores; `position`: of rows g and g + 8.
  __device__ __forceinline__ void finish_scores(float (&s)[kKeys / 8][4], const float* key_scales, float scale,
                                                float softcap, bool masked, int first_key, const int (&position)[2],
                                                int window) {
    const int t = threadIdx.x % 4;
    const auto for_scores = [&](auto&& f) {
#pragma unroll
      for (int n = 0; n < kKeys / 8; ++n)
#pragma unroll
        for (int i = 0; i < 4; ++i) f(s[n][i], n * 8 + 2 * t + i % 2, position[i / 2]);
    };
    cuda::finish_scores<C>(for_scores, key_scales, scale, softcap, masked, first_key, window);
  }

  // Turns s into weights relative to the new maximum of the row, and rescales what was summed before.
  __device__ __forceinline__ void softmax(float (&s)[kKeys / 8][4]) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float top = m[r];
#pragma unroll
      for (int n = 0; n < kKeys / 8; ++n) top = fmaxf(top, fmaxf(s[n][2 * r], s[n][2 * r + 1]));
      top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 1));
      top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 2));
      const float reference = top == -INFINITY ? 0.f : top;  // a row that has seen no key yet
      const float rescale = exp2_fast(m[r] - reference);
      float sum = 0;
#pragma unroll
      for (int n = 0; n < kKeys / 8; ++n) {
#pragma unroll
        for (int i = 2 * r; i < 2 * r + 2; ++i) {
          s[n][i] = exp2_fast(s[n][i] - reference);
          sum += s[n][i];
        }
      }
      m[r] = top;
      l[r] = l[r] * rescale + sum;
#pragma unroll
      for (int n = 0; n < D / 8; ++n) {
        o[n][2 * r] *= rescale;
        o[n][2 * r + 1] *= rescale;
      }
    }
  }

  // o += s V for the kKeys rows at v_sh. value_scales [kKeys]: of codes with a scale per token; s comes out multiplied
  // by them.
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
        uint32_t upper[4];  // of the second 16 keys
        weights(a, s, 2 * k);
        weights(upper, s, 2 * k + 1);
#pragma unroll
        for (int n = 0; n < D / 16; ++n) {
          ldmatrix_transposed(b, row + k * 32 * kKvStride + n * 16);
          uint32_t even[4], odd[4];
#pragma unroll
          for (int i = 0; i < 4; ++i) value_codes(C{}, b[i], even[i], odd[i]);
          mma_of<kHalfValues>(o[2 * n], a, even[0], even[1]);
          mma_of<kHalfValues>(o[2 * n + 1], a, odd[0], odd[1]);
          mma_of<kHalfValues>(o[2 * n], upper, even[2], even[3]);
          mma_of<kHalfValues>(o[2 * n + 1], upper, odd[2], odd[3]);
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
          mma_of<kHalfValues>(o[2 * n], a, b[0], b[1]);
          mma_of<kHalfValues>(o[2 * n + 1], a, b[2], b[3]);
        }
      }
    }
  }

  // The weights of keys [16 k, 16 k + 16) as the A operand of the next product: the C layout of s is its layout.
  static __device__ __forceinline__ void weights(uint32_t (&a)[4], const float (&s)[kKeys / 8][4], int k) {
    a[0] = pack_weights<kHalfValues>(s[2 * k][0], s[2 * k][1]);
    a[1] = pack_weights<kHalfValues>(s[2 * k][2], s[2 * k][3]);
    a[2] = pack_weights<kHalfValues>(s[2 * k + 1][0], s[2 * k + 1][1]);
    a[3] = pack_weights<kHalfValues>(s[2 * k + 1][2], s[2 * k + 1][3]);
  }

  // Calls f(column, x, y) for the pairs of neighbouring output columns that this lane holds of row g (r = 0) or g + 8
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

  // Puts the whole row's sum of weights on every lane that holds part of the row.
  __device__ __forceinline__ void finish_sums() {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      l[r] += __shfl_xor_sync(0xffffffffu, l[r], 1);
      l[r] += __shfl_xor_sync(0xffffffffu, l[r], 2);
    }
  }
};

}  // namespace fewbit::cuda::attention_flash
