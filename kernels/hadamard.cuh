#pragma once
// The fast Walsh-Hadamard transform of a run of values in shared memory, by a warp: the stages of
// kernels/hadamard_cpu.cpp, in their order. The caller divides by the root of the run.
#include "kernels/vec.cuh"

namespace fewbit::cuda {

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

// A head of d values in runs, rounded once; `wide`: d floats of shared memory.
template <class T>
__device__ __forceinline__ void hadamard_head(T* x, float* wide, int d, int run, float scale, int lane) {
  for (int i = lane; i < d; i += 32) wide[i] = to_f32(x[i]);
  for (int first = 0; first < d; first += run) hadamard_stages(wide + first, run, lane);
  for (int i = lane; i < d; i += 32) x[i] = from_f32<T>(wide[i] * scale);
}

}  // namespace fewbit::cuda
