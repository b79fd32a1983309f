#pragma once
// What the kernels that turn heads share: the cosines and sines of a position, and a warp's turn of one head.
#include "kernels/device/vec.cuh"

namespace fewbit::cuda {

// table [2, half]: cosines, then sines, times `scale`; with the precise sincosf, as positions reach 10^5 radians.
// Thread `first` of `step` threads.
__device__ __forceinline__ void rope_angles(float* table, float position, const float* inv_freq, int half, float scale,
                                            int first, int step) {
  for (int i = first; i < half; i += step) {
    float sine, cosine;
    sincosf(position * inv_freq[i], &sine, &cosine);
    table[i] = cosine * scale;
    table[half + i] = sine * scale;
  }
}

// The first 2 * half values of a head, by a warp; `to` may be `from`.
template <class T>
__device__ __forceinline__ void turn_head(const T* from, T* to, const float* table, int half, int lane) {
  for (int i = lane; i < half; i += 32) {
    const float c = table[i], sine = table[half + i], a = to_f32(from[i]), b = to_f32(from[half + i]);
    to[i] = from_f32<T>(a * c - b * sine);
    to[half + i] = from_f32<T>(b * c + a * sine);
  }
}

}  // namespace fewbit::cuda
