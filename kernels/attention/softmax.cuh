#pragma once
// The exponential of attention's softmax: base 2, the scores' scale brings log2(e) along.
namespace fewbit::cuda {

inline constexpr float kLog2e = 1.4426950408889634f;

__device__ __forceinline__ float exp2_fast(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

}  // namespace fewbit::cuda
