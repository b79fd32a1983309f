#pragma once
// Powers of two as scales: multiplying by them is exact, short of overflow and underflow.
#include <cstdint>

namespace fewbit::cuda {

// 2^exponent, for exponents -126 .. 127.
__device__ __forceinline__ float power_of_two(int exponent) {
  return __uint_as_float(static_cast<uint32_t>(127 + exponent) << 23);
}
// The exponent of the power of two that brings `most` (not negative) into 2^(bits - 1) .. 2^bits, held within -100 ..
// 100.
__device__ __forceinline__ int power_to_bits(float most, int bits) {
  return max(-100, min(100, bits - 1 + 127 - static_cast<int>(__float_as_uint(most) >> 23)));
}

}  // namespace fewbit::cuda
