#pragma once
// Exponentials, and what is made of them. Those of attention's softmax and of decays over many tokens are to base 2,
// which is one instruction; the factor that scales the exponents brings log2(e) along.
namespace fewbit::cuda {

inline constexpr float kLog2e = 1.4426950408889634f;

// 2^x to about two units in the last place; results below the smallest normal number become zero.
__device__ __forceinline__ float exp2_fast(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// log(1 + e^x)
__device__ __forceinline__ float softplus(float x) { return x > 20.f ? x : log1pf(expf(x)); }

}  // namespace fewbit::cuda
