#pragma once
// The element types of a key/value cache on the GPU: that of the activations, E4M3 codes, int8 codes, two codes of 4
// bits. Codes are exact in f16 and bf16, so that they go through the tensor cores as they are; their scales multiply
// scores and weights instead.
#include <cuda_fp8.h>

#include "kernels/device/vec.cuh"

namespace fewbit::cuda {

struct F8Code {
  uint8_t bits;  // E4M3
};
struct I8Code {
  int8_t value;
};
struct I4Codes {
  uint8_t bits;  // of two features, the even one's code in the low four; kernels/kv/int4_rows.h
};

template <class C>
inline constexpr bool kIsCode = sizeof(C) == 1;
// Whether codes have a scale for each token and kv head; else one for each kv head.
template <class C>
inline constexpr bool kTokenScales = false;
template <>
inline constexpr bool kTokenScales<I8Code> = true;
// Whether every group of a row's features has a scale and a center, a word of two bf16.
template <class C>
inline constexpr bool kGroupScales = false;
template <>
inline constexpr bool kGroupScales<I4Codes> = true;
// Elements that d features of a row take.
template <class C>
__host__ __device__ constexpr int stored(int d) {
  return kGroupScales<C> ? d / 2 : d;
}

// Calls f(Type<C>{}) with the element type of a cache of dtype `cache`; `plain`: that of the activations, for a cache
// without codes. Codes of 4 bits are none of its types.
template <class T, class F>
void dispatch_stored(Type<T> plain, DType cache, F&& f) {
  if (cache == DType::f8_e4m3) return f(Type<F8Code>{});
  if (cache == DType::i8) return f(Type<I8Code>{});
  f(plain);
}
// Calls f(Type<T>{}, Type<C>{}) with the element types of the activations and of the cache.
template <class F>
void dispatch_cache(DType dtype, DType cache, F&& f) {
  dispatch_f32_bf16(dtype, [&](auto type) {
    if (cache == DType::u8) return f(type, Type<I4Codes>{});
    dispatch_stored(type, cache, [&](auto code) { f(type, code); });
  });
}

__device__ __forceinline__ float to_f32(F8Code c) {
  return __half2float(__half(__nv_cvt_fp8_to_halfraw(c.bits, __NV_E4M3)));
}
__device__ __forceinline__ float to_f32(I8Code c) { return static_cast<float>(c.value); }

__device__ __forceinline__ uint32_t bits_of(__half2 v) { return *reinterpret_cast<const uint32_t*>(&v); }
__device__ __forceinline__ uint32_t bits_of(__nv_bfloat162 v) { return *reinterpret_cast<const uint32_t*>(&v); }
__device__ __forceinline__ __half2 as_half2(uint32_t bits) { return *reinterpret_cast<const __half2*>(&bits); }

// (a & b) | c in one instruction.
__device__ __forceinline__ uint32_t and_or(uint32_t a, uint32_t b, uint32_t c) {
  uint32_t d;
  asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
  return d;
}

// Two E4M3 codes in the low half of `codes` as two f16, exactly.
__device__ __forceinline__ uint32_t two_f16(uint32_t codes) {
#if __CUDA_ARCH__ >= 890
  uint32_t values;
  asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(values) : "h"(static_cast<uint16_t>(codes)));
  return values;
#else
  // Sign, exponent and fraction moved into the places of f16 are the value times 2^-8, as the exponents' biases, 7 and
  // 15, differ by 8. (A NaN becomes 480.)
  const uint32_t w = __byte_perm(codes, 0, 0x1404);
  return bits_of(__hmul2(as_half2(and_or(w, 0x80008000u, w >> 1 & 0x3f803f80u)), __float2half2_rn(256.f)));
#endif
}

// Codes 0 and 1, and 2 and 3, of the four in `word` as pairs of f16.
__device__ __forceinline__ void key_codes(F8Code, uint32_t word, uint32_t& first, uint32_t& second) {
  first = two_f16(word);
  second = two_f16(word >> 16);
}
__device__ __forceinline__ void key_codes(I8Code, uint32_t word, uint32_t& first, uint32_t& second) {
  // A byte in the lowest bits of the f16 number 1024 is 1024 + byte. The byte is code + 128, so 1152 is taken off (Kim
  // et al., Who Says Elephants Can't Run, 2022).
  const uint32_t w = word ^ 0x80808080u;
  const __half2 offset = __float2half2_rn(1152.f);
  first = bits_of(__hsub2(as_half2(__byte_perm(w, 0x64646464u, 0x4140)), offset));
  second = bits_of(__hsub2(as_half2(__byte_perm(w, 0x64646464u, 0x4342)), offset));
}

// Codes 0 and 2, and 1 and 3, of the four in `word` as pairs: f16 of E4M3, bf16 of int8, whose weights carry the scale
// of a token, which may be too small for f16.
__device__ __forceinline__ void value_codes(F8Code, uint32_t word, uint32_t& even, uint32_t& odd) {
  const uint32_t w = __byte_perm(word, 0, 0x3120);
  even = two_f16(w);
  odd = two_f16(w >> 16);
}
// The int8 codes in bytes 0 and 2 of `codes` as two bf16.
__device__ __forceinline__ uint32_t two_bf16(uint32_t codes) {
  // bf16 has seven bits of fraction: put into that of 128, the low seven bits of the code are 128 + those bits; taken
  // off is 128, or, where the code's sign bit reaches the exponent, 256.
  const uint32_t low = and_or(codes, 0x007f007fu, 0x43004300u), sign = and_or(codes, 0x00800080u, 0x43004300u);
  return bits_of(
      __hsub2(*reinterpret_cast<const __nv_bfloat162*>(&low), *reinterpret_cast<const __nv_bfloat162*>(&sign)));
}
__device__ __forceinline__ void value_codes(I8Code, uint32_t word, uint32_t& even, uint32_t& odd) {
  even = two_bf16(word);
  odd = two_bf16(word >> 8);
}

// Two of the eight codes in `word` as operands without arithmetic. As f16 a code in the lowest bits is a subnormal
// number, the code times 2^-24; 16 times that four bits further up, where the other factor of a product makes up for
// it. As bf16 a code in the lowest bits of 128 is 128 + code, which lower_nibbles() makes code - 8.
inline constexpr float kNibbleF16 = 16777216, kNibbleShift = 1 / 16.f;
// Codes j and j + 4, and j + 1 and j + 5 times 16, j even, of the words of keys g and g + 8; of values j and j + 1, and
// j + 4 and j + 5, of two dims of the keys of each.
template <bool kOfValues>
__device__ __forceinline__ void nibble_operand(uint32_t (&a)[4], uint32_t first, uint32_t second, int j) {
  constexpr uint32_t kLow = 0x000f000fu, kHigh = 0x00f000f0u, kRaised = 0x43004300u;
  if constexpr (kOfValues) {
    a[0] = and_or(first >> (4 * j), kLow, kRaised), a[1] = and_or(first >> (4 * j + 4), kLow, kRaised);
    a[2] = and_or(second >> (4 * j), kLow, kRaised), a[3] = and_or(second >> (4 * j + 4), kLow, kRaised);
  } else {
    const uint32_t x = first >> (4 * j), y = second >> (4 * j);
    a[0] = x & kLow, a[1] = y & kLow, a[2] = x & kHigh, a[3] = y & kHigh;
  }
}
__device__ __forceinline__ void lower_nibbles(uint32_t (&a)[4]) {
#pragma unroll
  for (uint32_t& two : a)
    two = bits_of(__hsub2(*reinterpret_cast<const __nv_bfloat162*>(&two), __float2bfloat162_rn(136.f)));
}

}  // namespace fewbit::cuda
