#pragma once
// Words of E2M1 codes (kernels/grids/fp4_words.h) as exact bf16: laid under bf16's bits a code reads as its value times
// 2^-126, and one product with a power of two makes the value of it, with the block's scale.
#include <cuda_bf16.h>

#include "kernels/grids/fp4_words.h"

namespace fewbit::cuda {

// 2^126 times the scale of an E8M0 code up to kMostFp4Scale (kernels/products/fp4_values.h), as two bf16.
__device__ __forceinline__ uint32_t fp4_factor(uint32_t code) {
  const uint32_t one = (code + 126u) << 7;  // 2^(code - 1)
  return one | one << 16;
}

__device__ __forceinline__ uint32_t turned_right(uint32_t word, int bits) { return __funnelshift_r(word, word, bits); }

// The values of inputs 2 J and 2 J + 1 of a word, under fp4_factor(): the former in the lower half. J in 0 .. 3.
template <int J>
__device__ __forceinline__ uint32_t fp4_pair(uint32_t word, uint32_t factor) {
  uint32_t bits;
  if constexpr (J < 3) {
    constexpr int kTurn = kFp4Turn[J];
    bits = turned_right(word, kTurn) & kFp4PairBits;
  } else {
    bits = (turned_right(word, kFp4LastTurn) & kFp4LastBits) | (turned_right(word, kFp4LastTopTurn) & kFp4LastTopBits);
  }
  uint32_t values;  // an fma with -0 keeps the sign of zeros
  asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(values) : "r"(bits), "r"(factor), "r"(0x80008000u));
  return values;
}

}  // namespace fewbit::cuda
