#pragma once
// RMS norm in pieces: the squares of what a thread has, and its values scaled, for every kernel that norms.
#include "kernels/device/reduce.cuh"
#include "kernels/device/vec.cuh"

namespace fewbit::cuda {

template <class T, int kN>
__device__ __forceinline__ float squares(const Vec<T, kN>& v, float sum) {
#pragma unroll
  for (int i = 0; i < kN; ++i) {
    const float f = to_f32(v[i]);
    sum = fmaf(f, f, sum);
  }
  return sum;
}
template <class T, int kN>
__device__ __forceinline__ Vec<T, kN> scaled(const Vec<T, kN>& v, const Vec<T, kN>& w, float inv, float offset) {
  Vec<T, kN> out;
#pragma unroll
  for (int i = 0; i < kN; ++i) out[i] = from_f32<T>(to_f32(v[i]) * inv * (to_f32(w[i]) + offset));
  return out;
}

template <class T, int kN>
__device__ __forceinline__ float squares(const T* x, int64_t cols, int first, int step) {
  float sum = 0;
  for (int64_t c = static_cast<int64_t>(first) * kN; c < cols; c += static_cast<int64_t>(step) * kN)
    sum = squares<T, kN>(load_vec<T, kN>(x + c), sum);
  return sum;
}

template <class T, int kN>
__device__ __forceinline__ void scale_row(const T* x, const T* __restrict__ weight, float inv, float offset, T* y,
                                          int64_t cols, int first, int step) {
  for (int64_t c = static_cast<int64_t>(first) * kN; c < cols; c += static_cast<int64_t>(step) * kN)
    store_vec(y + c, scaled<T, kN>(load_vec<T, kN>(x + c), load_vec<T, kN>(weight + c), inv, offset));
}

__device__ __forceinline__ float inverse_root(float squares, int64_t cols, float eps) {
  return 1.f / sqrtf(squares / static_cast<float>(cols) + eps);
}

// A row normed by a warp. y may be x: a lane writes only what it has read itself.
template <class T, int kN>
__device__ __forceinline__ void norm_row(const T* x, const T* __restrict__ weight, float eps, float offset, T* y,
                                         int64_t cols, int lane) {
  const float sum = warp_sum(squares<T, kN>(x, cols, lane, 32));
  scale_row<T, kN>(x, weight, inverse_root(sum, cols, eps), offset, y, cols, lane, 32);
}

}  // namespace fewbit::cuda
