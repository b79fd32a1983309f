#pragma once
// rope_angles() and turn_head(): the cosines and sines of a position, and one head rotated by a warp, for every kernel
// that applies rotary embedding.
#include "kernels/device/vec.cuh"

namespace fewbit::cuda {

// table [2, half] = the cosines, then the sines of one position, times `scale`; for thread `first` of `step` threads.
// With the precise sincosf, as angles reach 10^5 radians.
__device__ __forceinline__ void rope_angles(float* table, float position, const float* inv_freq, int half, float scale,
                                            int first, int step) {
  for (int i = first; i < half; i += step) {
    float sine, cosine;
    sincosf(position * inv_freq[i], &sine, &cosine);
    table[i] = cosine * scale;
    table[half + i] = sine * scale;
  }
}

// (a, b) turned by an angle. Which product a sum is fused with is said here, so that all kernels have the same bits.
__device__ __forceinline__ float turned_first(float a, float b, float cosine, float sine) {
  return fmaf(a, cosine, -__fmul_rn(b, sine));
}
__device__ __forceinline__ float turned_second(float a, float b, float cosine, float sine) {
  return fmaf(b, cosine, __fmul_rn(a, sine));
}

// The first 2 * half values of a head, rotated by a warp; `to` may be `from`.
template <class T>
__device__ __forceinline__ void turn_head(const T* from, T* to, const float* table, int half, int lane) {
  for (int i = lane; i < half; i += 32) {
    const float c = table[i], sine = table[half + i], a = to_f32(from[i]), b = to_f32(from[half + i]);
    to[i] = from_f32<T>(turned_first(a, b, c, sine));
    to[half + i] = from_f32<T>(turned_second(a, b, c, sine));
  }
}

}  // namespace fewbit::cuda
