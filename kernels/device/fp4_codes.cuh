#pragma once
// E2M1 codes (OCP Microscaling Formats, version 1.0) as exact bf16.
//
// A code is sign, two bits of exponent, one of mantissa. Laid at the top of bf16's mantissa and the bottom of its
// exponent those three bits read as the code's value times 2^-126, subnormal ones too, since both formats have a step
// of the smallest exponent below it. One product with a power of two makes the value of it, with the block's scale.
#include <cuda_bf16.h>

#include <cstdint>

namespace fewbit::cuda {

// 2^126 times the scale of an E8M0 code up to kMostFp4Scale (kernels/products/fp4_values.h), as two bf16.
__device__ __forceinline__ uint32_t fp4_factor(uint32_t code) {
  const uint32_t one = (code + 126u) << 7;  // 2^(code - 1)
  return one | one << 16;
}

// The values at nibbles I and I + 4 of a word, under fp4_factor(): the lower of them in the lower half. I in 0 .. 3.
template <int I>
__device__ __forceinline__ uint32_t fp4_pair(uint32_t word, uint32_t factor) {
  const uint32_t top = word << (12 - 4 * I);
  const uint32_t magnitudes = I == 3 ? word >> 6 : I == 2 ? word >> 2 : I == 1 ? word << 2 : word << 6;
  const uint32_t bits = (top & 0x80008000u) | (magnitudes & 0x01c001c0u);
  uint32_t values;  // an fma with -0 keeps the sign of zeros
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(values) : "r"(bits), "r"(factor), "r"(0x80008000u));
  return values;
}

}  // namespace fewbit::cuda
