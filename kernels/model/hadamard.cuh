#pragma once
// The fast Walsh-Hadamard transform of a run of values, by a warp: the stages of kernels/model/hadamard_cpu.cpp, in
// their order.
#include "kernels/device/vec.cuh"

namespace fewbit::cuda {

// In shared memory; the caller divides by the root of the run.
__device__ __forceinline__ void hadamard_stages(float* x, int run, int lane) {
  __syncwarp();
  for (int half = 1; half < run; half *= 2) {
    for (int pair = lane; pair < run / 2; pair += 32) {
      const int first = pair / half * 2 * half + pair % half;
      const float u = x[first], v = x[first + half];
      x[first] = u + v;
      x[first + half] = u - v;
    }
    __syncwarp();
  }
}

// A run of 32 * kEach values, kEach neighbours a lane: the same stages between registers, with the same sums.
template <int kEach, class T>
__device__ __forceinline__ void hadamard_lanes(const T* x, T* to, float scale, int lane) {
  float v[kEach];
#pragma unroll
  for (int i = 0; i < kEach; ++i) v[i] = to_f32(x[kEach * lane + i]);
#pragma unroll
  for (int half = 1; half < kEach; half *= 2)
#pragma unroll
    for (int i = 0; i < kEach; ++i)
      if (i / half % 2 == 0) {
        const float u = v[i], w = v[i + half];
        v[i] = u + w;
        v[i + half] = u - w;
      }
#pragma unroll
  for (int step = 1; step < 32; step *= 2)
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const float other = __shfl_xor_sync(0xffffffffu, v[i], step);
      v[i] = lane & step ? other - v[i] : v[i] + other;
    }
#pragma unroll
  for (int i = 0; i < kEach; ++i) to[kEach * lane + i] = from_f32<T>(v[i] * scale);
}

// A head of d values in runs, rounded once, from x to `to`, which may be x; `wide`: d floats of shared memory. What
// lanes wrote to x is seen by the others: the caller has synchronized the warp.
template <class T>
__device__ __forceinline__ void hadamard_head(const T* x, T* to, float* wide, int d, int run, float scale, int lane) {
  if (run == d && d == 64) return hadamard_lanes<2>(x, to, scale, lane);
  if (run == d && d == 128) return hadamard_lanes<4>(x, to, scale, lane);
  if (run == d && d == 256) return hadamard_lanes<8>(x, to, scale, lane);
  for (int i = lane; i < d; i += 32) wide[i] = to_f32(x[i]);
  for (int first = 0; first < d; first += run) hadamard_stages(wide + first, run, lane);
  for (int i = lane; i < d; i += 32) to[i] = from_f32<T>(wide[i] * scale);
}

}  // namespace fewbit::cuda
