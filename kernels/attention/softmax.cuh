#pragma once
// The exponential of attention's softmax. It is to base 2, which is one instruction; the factor that scales the scores
// brings log2(e) along.
namespace fewbit::cuda {

inline constexpr float kLog2e = 1.4426950408889634f;

// 2^x to about two units in the last place; results below the smallest normal number become zero.
__device__ __forceinline__ float exp2_fast(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

}  // namespace fewbit::cuda
