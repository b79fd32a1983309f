#pragma once
// Typed vectors of up to 16 bytes, and the conversions between the float types that kernels read and write. Kernels
// compute in f32; a value is rounded once, to nearest even, when it is stored.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>

#include "src/core/dtype.h"
#include "src/core/error.h"

namespace fewbit::cuda {

// N values side by side. One instruction loads or stores them where they take 4, 8 or 16 bytes, several of 16 bytes
// where they take more.
template <class T, int N>
struct alignas(sizeof(T) * N < 16 ? sizeof(T) * N : 16) Vec {
  T v[N];
  __device__ T& operator[](int i) { return v[i]; }
  __device__ const T& operator[](int i) const { return v[i]; }
};
template <class T>
inline constexpr int kVec16 = 16 / static_cast<int>(sizeof(T));  // values in 16 bytes

__device__ __forceinline__ float to_f32(float x) { return x; }
__device__ __forceinline__ float to_f32(__half x) { return __half2float(x); }
__device__ __forceinline__ float to_f32(__nv_bfloat16 x) { return __bfloat162float(x); }

template <class T>
__device__ __forceinline__ T from_f32(float x);
template <>
__device__ __forceinline__ float from_f32<float>(float x) {
  return x;
}
template <>
__device__ __forceinline__ __half from_f32<__half>(float x) {
  return __float2half_rn(x);
}
template <>
__device__ __forceinline__ __nv_bfloat16 from_f32<__nv_bfloat16>(float x) {
  return __float2bfloat16_rn(x);
}

template <class T, int N>
__device__ __forceinline__ Vec<T, N> load_vec(const T* p) {
  return *reinterpret_cast<const Vec<T, N>*>(p);
}
template <class T, int N>
__device__ __forceinline__ void store_vec(T* p, const Vec<T, N>& v) {
  *reinterpret_cast<Vec<T, N>*>(p) = v;
}

// True when p, and every row of `stride` values after it, starts at a multiple of 16 bytes.
template <class T>
inline bool aligned16(const T* p, int64_t stride = 0) {
  return reinterpret_cast<uintptr_t>(p) % 16 == 0 && stride * static_cast<int64_t>(sizeof(T)) % 16 == 0;
}

template <class T>
struct Type {
  using type = T;
};

// Calls f(Type<T>{}) with the device type of `d`.
template <class F>
void dispatch_f32_bf16(DType d, F&& f) {
  switch (d) {
    case DType::f32:
      return f(Type<float>{});
    case DType::bf16:
      return f(Type<__nv_bfloat16>{});
    default:
      bug("an op for f32 and bf16 was given another dtype");
  }
}
template <class F>
void dispatch_float(DType d, F&& f) {
  switch (d) {
    case DType::f32:
      return f(Type<float>{});
    case DType::f16:
      return f(Type<__half>{});
    case DType::bf16:
      return f(Type<__nv_bfloat16>{});
    default:
      bug("an op for f32, f16 and bf16 was given another dtype");
  }
}

// How many blocks of `threads` cover n; where that is more than `cap`, the kernel must stride by the grid.
inline unsigned grid_for(int64_t n, int threads, int64_t cap = 1 << 20) {
  const int64_t blocks = (n + threads - 1) / threads;
  return static_cast<unsigned>(blocks < 1 ? 1 : blocks > cap ? cap : blocks);
}

}  // namespace fewbit::cuda
