// Conversion between float types: a thread has eight neighbours, 8 to 32 bytes in, 4 to 32 out, coalesced over the
// warp; bound by memory. The way between any two types is f32, which holds every value of the narrower ones exactly, so
// one rounding remains.
#include <cuda_fp8.h>

#include "kernels/device/vec.cuh"
#include "kernels/exec/exec_cuda.h"
#include "kernels/model/cast.h"

namespace fewbit::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kN = 8;  // values per thread

struct E4m3 {
  uint8_t bits;
};
struct E5m2 {
  uint8_t bits;
};

__device__ __forceinline__ float widen(E4m3 x) {
  return __half2float(__half(__nv_cvt_fp8_to_halfraw(x.bits, __NV_E4M3)));
}
__device__ __forceinline__ float widen(E5m2 x) {
  return __half2float(__half(__nv_cvt_fp8_to_halfraw(x.bits, __NV_E5M2)));
}
template <class T>
__device__ __forceinline__ float widen(T x) {
  return to_f32(x);
}

template <class T>
__device__ __forceinline__ T narrow(float x) {
  return from_f32<T>(x);
}
template <>
__device__ __forceinline__ E4m3 narrow<E4m3>(float x) {
  return {static_cast<uint8_t>(__nv_cvt_float_to_fp8(x, __NV_SATFINITE, __NV_E4M3))};
}

template <class In, class Out>
__global__ void cast_kernel(const In* __restrict__ x,  // [n]
                            Out* __restrict__ y,       // [n]
                            int64_t n, bool vectors) {
  const int64_t begin = (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) * kN;
  if (vectors && begin + kN <= n) {
    const auto in = load_vec<In, kN>(x + begin);
    Vec<Out, kN> out;
#pragma unroll
    for (int i = 0; i < kN; ++i) out[i] = narrow<Out>(widen(in[i]));
    store_vec(y + begin, out);
    return;
  }
  for (int64_t i = begin; i < n && i < begin + kN; ++i) y[i] = narrow<Out>(widen(x[i]));
}

// Variants: every pair of the contract's types; equal types are a plain copy.
template <class F>
void dispatch_source(DType d, F&& f) {
  if (d == DType::f8_e4m3) return f(Type<E4m3>{});
  if (d == DType::f8_e5m2) return f(Type<E5m2>{});
  dispatch_float(d, f);
}
template <class F>
void dispatch_target(DType d, F&& f) {
  if (d == DType::f8_e4m3) return f(Type<E4m3>{});
  dispatch_float(d, f);
}

}  // namespace

void cast(Exec& ex, ConstTensorView x, TensorView y) {
  const int64_t n = x.numel();
  FEWBIT_ASSERT(y.numel() == n);
  if (n == 0) return;
  if (x.dtype == y.dtype) return ex.copy(x, y);
  const bool vectors = aligned16(static_cast<const char*>(x.data)) && aligned16(static_cast<const char*>(y.data));
  const int64_t blocks = (n + kThreads * kN - 1) / (kThreads * kN);
  FEWBIT_ASSERT(blocks < (int64_t{1} << 31));
  dispatch_source(x.dtype, [&](auto in) {
    dispatch_target(y.dtype, [&](auto out) {
      using In = typename decltype(in)::type;
      using Out = typename decltype(out)::type;
      cast_kernel<<<static_cast<unsigned>(blocks), kThreads, 0, ex.cuda_state().stream>>>(x.as<In>(), y.as<Out>(), n,
                                                                                          vectors);
    });
  });
  FEWBIT_CUDA_LAUNCHED();
}

}  // namespace fewbit::cuda
