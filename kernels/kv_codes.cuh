#pragma once
// The element types of a key/value cache on the GPU: that of the activations, E4M3 codes, int8 codes. Codes
// are exact in bf16, so that they go through the tensor cores as they are; their scales come in outside.
#include <cuda_fp8.h>

#include "kernels/vec.cuh"

namespace fewbit::cuda {

struct F8Code {
  uint8_t bits;  // E4M3
};
struct I8Code {
  int8_t value;
};

template <class C>
inline constexpr bool kIsCode = sizeof(C) == 1;
template <class C>
inline constexpr bool kTokenScales = false;  // a scale per token, else one per kv head
template <>
inline constexpr bool kTokenScales<I8Code> = true;

__device__ __forceinline__ float to_f32(F8Code c) {
  return __half2float(__half(__nv_cvt_fp8_to_halfraw(c.bits, __NV_E4M3)));
}
__device__ __forceinline__ float to_f32(I8Code c) { return static_cast<float>(c.value); }

// Codes kFirst and kSecond of the four in `word` as two bf16, the first in the lower half.
template <class C, int kFirst, int kSecond>
__device__ __forceinline__ uint32_t two_bf16(uint32_t word) {
  if constexpr (std::is_same_v<C, F8Code>) {
    // Sign, exponent and fraction moved into place: the value times 2^-120, subnormal ones included. The one
    // product brings it back, exactly. (A NaN, which the saturating cast makes of NaN only, becomes 480.)
    const uint32_t w = __byte_perm(word, 0, 4 | kFirst << 4 | 4 << 8 | kSecond << 12);
    const uint32_t bits = (w & 0x80008000u) | (w >> 4 & 0x07f007f0u);
    const __nv_bfloat162 value = __hmul2(*reinterpret_cast<const __nv_bfloat162*>(&bits),
                                         __halves2bfloat162(__ushort_as_bfloat16(0x7b80), __ushort_as_bfloat16(0x7b80)));
    return *reinterpret_cast<const uint32_t*>(&value);
  } else {
    // (128 + low seven bits) - (128, or 256 for a negative code): sums of bits in the fraction of 128.
    const uint32_t w = __byte_perm(word, 0, kFirst | 4 << 4 | kSecond << 8 | 4 << 12);
    const uint32_t low = (w & 0x007f007fu) | 0x43004300u, sign = (w & 0x00800080u) | 0x43004300u;
    const __nv_bfloat162 value = __hsub2(*reinterpret_cast<const __nv_bfloat162*>(&low),
                                         *reinterpret_cast<const __nv_bfloat162*>(&sign));
    return *reinterpret_cast<const uint32_t*>(&value);
  }
}

}  // namespace fewbit::cuda
