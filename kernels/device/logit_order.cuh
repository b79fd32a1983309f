#pragma once
// The order of logits in which route() chooses (kernels/model/route.h), for every kernel that chooses.
#include <cmath>
#include <cstdint>

namespace fewbit::cuda {

// A NaN comes behind all numbers.
__device__ __forceinline__ float rank_of(float z) { return isnan(z) ? -INFINITY : z; }

// A logit as a number of the same order, above zero; -0 is 0.
__device__ __forceinline__ uint32_t ordered_bits(float logit) {
  const auto bits = __float_as_uint(logit + 0.f);
  return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}
__device__ __forceinline__ float logit_of_bits(uint32_t ordered) {
  return __uint_as_float(ordered & 0x80000000u ? ordered & 0x7fffffffu : ~ordered);
}

}  // namespace fewbit::cuda
