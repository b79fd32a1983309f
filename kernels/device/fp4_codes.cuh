#pragma once
// Words of E2M1 codes (kernels/grids/fp4_words.h) as exact bf16: laid under bf16's bits a code reads as its value times
// 2^-126, and one product with a power of two makes the value of it, with the block's scale.
#include <cuda_bf16.h>

#include "kernels/grids/fp4_words.h"

namespace fewbit::cuda {

// 2^126 times the scale of an E8M0 code up to kMostFp4Scale (kernels/products/fp4_values.h), as two bf16.
__device__ __forceinline__ uint32_t fp4_factor(uint32_t code) {
  constexpr uint32_t kBoth = 0x00800080;  // of the lowest bits of two exponents
  return code * kBoth + 126 * kBoth;      // 2^(code - 1)
}

// The values of inputs 2 J and 2 J + 1 of a word, under fp4_factor(): the former in the lower half. J in 0 .. 3.
template <int J>
__device__ __forceinline__ uint32_t fp4_pair(uint32_t word, uint32_t factor) {
  uint32_t bits;
  if constexpr (J == 0)
    bits = word & kFp4PairBits;
  else if constexpr (J == 1)
    bits = (word << kFp4FirstShift) & kFp4PairBits;
  else if constexpr (J == 2)
    bits = __funnelshift_l(word, word, kFp4SecondTurn) & kFp4PairBits;
  else
    bits = ((word << kFp4LastShift) & kFp4LastBits) | ((word >> kFp4LastShift) & kFp4LastLowBits);
  uint32_t values;  // an fma with -0 keeps the sign of zeros
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(values) : "r"(bits), "r"(factor), "r"(0x80008000u));
  return values;
}

// What a word of output g and one of output g + 8 are to the tensor cores: the operands of two products of 16 outputs
// by 16 inputs, a lane's.
__device__ __forceinline__ void fp4_operands(uint32_t (&first)[4], uint32_t (&second)[4], uint32_t low, uint32_t high,
                                             uint32_t low_factor, uint32_t high_factor) {
  first[0] = fp4_pair<0>(low, low_factor), first[1] = fp4_pair<0>(high, high_factor);
  first[2] = fp4_pair<1>(low, low_factor), first[3] = fp4_pair<1>(high, high_factor);
  second[0] = fp4_pair<2>(low, low_factor), second[1] = fp4_pair<2>(high, high_factor);
  second[2] = fp4_pair<3>(low, low_factor), second[3] = fp4_pair<3>(high, high_factor);
}

}  // namespace fewbit::cuda
