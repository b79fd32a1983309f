#pragma once
// The fast Walsh-Hadamard transform of a run of values in shared memory, by a warp: the stages of
// kernels/hadamard_cpu.cpp, in their order. The caller divides by the root of the run.
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

}  // namespace fewbit::cuda
