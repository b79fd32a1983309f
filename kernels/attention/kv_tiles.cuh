#pragma once
// Tiles of queries, keys and values in shared memory: their layout, the copies that fill them, and the tensor-core
// products in the type that suits what they hold.
#include "kernels/device/exponential.cuh"
#include "kernels/device/kv_codes.cuh"
#include "kernels/device/mma.cuh"

namespace fewbit::cuda {

// Values from one row of D to the next in shared memory. D is head_dim rounded up to an instantiation; columns past the
// true head_dim hold zeros. A row takes an odd multiple of 16 bytes, so that the eight rows of an ldmatrix fall into
// different banks.
template <class C, int D>
inline constexpr int kRowStride = stored<C>(D) * sizeof(C) % 32 == 0 ? stored<C>(D) + 16 / static_cast<int>(sizeof(C))
                                                                     : stored<C>(D);

// Copies kRows rows of d elements to shared memory, kRowStride apart; columns from d to D, and rows for which
// source(row) is null, become zeros. `any` is an address that is always mapped. One group of asynchronous copies is
// left open.
template <int D, int kRows, int kThreads, class C, class F>
__device__ __forceinline__ void copy_rows(C* to, int thread, int d, const C* any, F source) {
  constexpr int kPiece = 16 / static_cast<int>(sizeof(C)), kChunks = stored<C>(D) / kPiece;
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

// Copies the scales of keys [first, first + kKeys) to `to` [2, kKeys]: those of the keys, then those of the values.
// place(key): where a key's scale lies behind k_scales and v_scales; where it is -1, the scale becomes zero.
template <int kKeys, int kThreads, class F>
__device__ __forceinline__ void copy_scales(float* to, int thread, const float* k_scales, const float* v_scales,
                                            int first, F&& place) {
#pragma unroll
  for (int base = 0; base < 2 * kKeys; base += kThreads) {
    const int i = base + thread;
    if (2 * kKeys % kThreads != 0 && i >= 2 * kKeys) break;
    const int64_t at = place(first + i % kKeys);
    const float* from = i < kKeys ? k_scales : v_scales;
    cp_async4(to + i, at >= 0 ? from + at : from, at >= 0);
  }
}

// Copies kBytes (4, 8 or 16) asynchronously from global to shared memory.
template <int kBytes>
__device__ __forceinline__ void cp_async(uint32_t shared, const void* global) {
  if constexpr (kBytes == 16)
    cp_async16(shared, global);
  else
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2;\n" ::"r"(shared), "l"(global), "n"(kBytes) : "memory");
}

// Two bf16 as two f16: queries, before they meet codes, whose products are in f16.
__device__ __forceinline__ uint32_t f16_of_bf16(uint32_t pair) {
  const float2 v = __bfloat1622float2(*reinterpret_cast<const __nv_bfloat162*>(&pair));
  return pack_f16(v.x, v.y);
}

// c += a b, in f16 or in bf16, and two weights as that type.
template <bool kHalf>
__device__ __forceinline__ void mma_of(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  if constexpr (kHalf)
    mma_f16(c, a, b0, b1);
  else
    mma_bf16(c, a, b0, b1);
}
template <bool kHalf>
__device__ __forceinline__ uint32_t pack_weights(float low, float high) {
  return kHalf ? pack_f16(low, high) : pack_bf16(low, high);
}

// The codes of one load for for_operands: four registers, or the first two where no more is left (`whole` false).
template <bool kOfValues, class C>
__device__ __forceinline__ void load_codes(uint32_t (&w)[4], const C* at, bool whole) {
  if (whole)
    kOfValues ? ldmatrix_transposed(w, at) : ldmatrix(w, at);
  else
    kOfValues ? ldmatrix_two_transposed(w, at) : ldmatrix_two(w, at);
}

// Calls f(n, a) with the A operand of dims [16 n, 16 n + 16) of 16 keys, for every n: of K, or of V transposed.
// `row`: where this lane's row begins for ldmatrix. A load of codes serves two n, except for a last single one.
// kRaised: codes of 4 bits of values stay raised by 136 (kernels/device/kv_codes.cuh). half_row: of codes of 4 bits,
// from the first 64 dims of a row to the next ones.
template <class C, int D, bool kOfValues, bool kRaised, class F>
__device__ __forceinline__ void for_operands(const C* row, F&& f, int half_row = 32) {
  constexpr int kSteps = D / 16;
  uint32_t a[4];
  if constexpr (kGroupScales<C>) {
#pragma unroll
    for (int n = 0; n < kSteps; n += 4) {
      uint32_t w[4];
      load_codes<kOfValues>(w, row + n / 4 * half_row, n + 2 < kSteps);
#pragma unroll
      for (int i = 0; i < 4 && n + i < kSteps; ++i) {
        nibble_operand<kOfValues>(a, w[i / 2 * 2], w[i / 2 * 2 + 1], i % 2 * 2);
        if constexpr (kOfValues && !kRaised) lower_nibbles(a);
        f(n + i, a);
      }
    }
  } else if constexpr (kIsCode<C>) {
#pragma unroll
    for (int n = 0; n < kSteps; n += 2) {
      uint32_t w[4];
      load_codes<kOfValues>(w, row + n * 16, n + 1 < kSteps);
#pragma unroll
      for (int i = 0; i < 2 && n + i < kSteps; ++i) {
        if constexpr (kOfValues) {
          value_codes(C{}, w[2 * i], a[0], a[1]);
          value_codes(C{}, w[2 * i + 1], a[2], a[3]);
        } else {
          key_codes(C{}, w[2 * i], a[0], a[2]);
          key_codes(C{}, w[2 * i + 1], a[1], a[3]);
        }
        f(n + i, a);
      }
    }
  } else {
#pragma unroll
    for (int n = 0; n < kSteps; ++n) {
      kOfValues ? ldmatrix_transposed(a, row + n * 16) : ldmatrix(a, row + n * 16);
      f(n, a);
    }
  }
}

// What products are multiplied by to become scores in the domain of the base-2 logarithm, or, with a cap, what it caps.
__device__ __forceinline__ float score_factor(float scale, float softcap) {
  return softcap > 0 ? scale / softcap : scale * kLog2e;
}
// Products become scores in the domain of the base-2 logarithm: scaled (those of codes of 4 bits are already), capped
// where softcap > 0 (Gemma 2 report, 2024, section 2), and minus infinity where `masked` and the row does not see the
// key. for_scores(f) calls f(score, key of the tile, position of the row) for every score of the lane. key_scales [keys
// of the tile]: where tokens have their own.
template <class C, class ForScores>
__device__ __forceinline__ void finish_scores(ForScores&& for_scores, const float* key_scales, float scale,
                                              float softcap, bool masked, int first_key, int window) {
  const float factor = score_factor(scale, softcap);
  if constexpr (!kGroupScales<C>)
    for_scores([&](float& x, int key, int) { x *= kTokenScales<C> ? factor * key_scales[key] : factor; });
  if (softcap > 0) for_scores([&](float& x, int, int) { x = softcap * kLog2e * tanhf(x); });
  if (!masked) return;
  for_scores([&](float& x, int key, int position) {
    const int at = first_key + key;
    if (at > position || (window > 0 && at <= position - window)) x = -INFINITY;
  });
}

}  // namespace fewbit::cuda
