#pragma once
// One row of keys or values, quantized and stored as the cache holds it (KvCache, kernels/attention/attention.h), by a
// warp. The arithmetic is that of the CPU half, operation by operation, so that the codes are the same.
#include "kernels/device/kv_codes.cuh"
#include "kernels/kv/int4_rows.cuh"

namespace fewbit::cuda {

// Stores the codes of a row of d values and returns the scale that belongs to them: E4M3 takes the one given, int8
// makes its own.
template <class T>
__device__ float quantize_row(const T* x, F8Code* codes, float scale, int d) {
  for (int c = threadIdx.x % 32; c < d; c += 32)
    codes[c].bits = __nv_cvt_float_to_fp8(__fdiv_rn(to_f32(x[c]), scale), __NV_SATFINITE, __NV_E4M3);
  return scale;
}
template <class T>
__device__ float quantize_row(const T* x, I8Code* codes, float, int d) {
  float amax = 0;
  for (int c = threadIdx.x % 32; c < d; c += 32) amax = fmaxf(amax, fabsf(to_f32(x[c])));
  for (int other = 16; other > 0; other /= 2) amax = fmaxf(amax, __shfl_xor_sync(0xffffffffu, amax, other));
  const float inverse = amax > 0 ? __fdiv_rn(127.f, amax) : 0.f;
  for (int c = threadIdx.x % 32; c < d; c += 32)
    codes[c].value = static_cast<int8_t>(__float2int_rn(to_f32(x[c]) * inverse));
  return __fdiv_rn(amax, 127.f);
}

// Stores a row of d values at row `at` of the cache [batch, kv_heads, capacity, d]. `scales` has one for each kv head,
// which is read, or one for each row, which is written; codes aside it is not used.
template <class T, class C>
__device__ __forceinline__ void store_row(const T* x, C* cache, float* scales, int64_t at, int kv_head, int d) {
  static_assert(!kGroupScales<C>);
  if constexpr (kIsCode<C>) {
    float* scale = scales + (kTokenScales<C> ? at : kv_head);
    const float used = quantize_row(x, cache + at * d, kTokenScales<C> ? 0.f : *scale, d);
    if (kTokenScales<C> && threadIdx.x % 32 == 0) *scale = used;
  } else {
    for (int c = threadIdx.x % 32; c < d; c += 32) cache[at * d + c] = x[c];
  }
}

// The same of a cache of 4 bits, whose scales are a word for each group of a row: by the warps of a block, kWarps a
// group, or by one warp (kernels/kv/int4_rows.cuh).
template <int kWarps, class T, class Room>
__device__ __forceinline__ void store_int4_row(const T* x, I4Codes* cache, float* scales, int64_t at, int d, Room& room,
                                               int warps, int warp) {
  nibble_rows::store_row<kWarps>(x, &cache[at * (d / 2)].bits,
                                 reinterpret_cast<uint32_t*>(scales) + at * int4_groups(d), d, room, warps, warp);
}

}  // namespace fewbit::cuda
