#pragma once
// Reductions over a warp and over a block in a fixed order: butterflies inside of a warp, then over the warps' results.
// They give the same bits on every run and on every lane.
#include <cmath>
#include <cstdint>

namespace fewbit::cuda {

struct Sum {
  template <class T>
  __device__ T operator()(T a, T b) const {
    return a + b;
  }
};
struct Max {
  __device__ float operator()(float a, float b) const { return fmaxf(a, b); }  // a NaN is ignored
};

// Every lane gets the result. `width` lanes side by side reduce among themselves (a power of two up to 32).
template <class Op, class T>
__device__ __forceinline__ T warp_reduce(T x, Op op, int width = 32) {
  for (int lane = width / 2; lane > 0; lane /= 2) x = op(x, __shfl_xor_sync(0xffffffffu, x, lane));
  return x;
}
template <class T>
__device__ __forceinline__ T warp_sum(T x) {
  return warp_reduce(x, Sum{});
}
__device__ __forceinline__ float warp_max(float x) { return warp_reduce(x, Max{}); }

// Every thread of the block (blockDim.x a multiple of 32, up to 1024, one-dimensional) gets the result.
// `shared` has room for 32 values and may be used again right after.
template <class Op, class T>
__device__ __forceinline__ T block_reduce(T x, Op op, T neutral, T* shared) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, warps = blockDim.x / 32;
  x = warp_reduce(x, op);
  if (lane == 0) shared[warp] = x;
  __syncthreads();
  x = warp_reduce(lane < warps ? shared[lane] : neutral, op);
  __syncthreads();
  return x;
}
template <class T>
__device__ __forceinline__ T block_sum(T x, T* shared) {
  return block_reduce(x, Sum{}, T(0), shared);
}
__device__ __forceinline__ float block_max(float x, float* shared) { return block_reduce(x, Max{}, -INFINITY, shared); }

}  // namespace fewbit::cuda
