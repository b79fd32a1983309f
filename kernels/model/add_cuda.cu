// The residual sum: a thread adds eight neighbours; bound by memory. All values times a factor: a thread has a value.
#include "kernels/device/launch.cuh"
#include "kernels/device/vec.cuh"
#include "kernels/model/add.h"

namespace fewbit::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kN = 8;  // values per thread

template <class T>
__global__ void add_kernel(const T* h, T* x, float factor, int64_t n, bool vectors) {
  allow_successor();
  await_predecessor();
  const int64_t begin = (static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x) * kN;
  if (vectors && begin + kN <= n) {
    const auto a = load_vec<T, kN>(h + begin);
    auto b = load_vec<T, kN>(x + begin);
#pragma unroll
    for (int i = 0; i < kN; ++i) b[i] = from_f32<T>(fmaf(factor, to_f32(a[i]), to_f32(b[i])));
    store_vec(x + begin, b);
    return;
  }
  for (int64_t i = begin; i < n && i < begin + kN; ++i) x[i] = from_f32<T>(fmaf(factor, to_f32(h[i]), to_f32(x[i])));
}

template <class T>
__global__ void scale_by_kernel(const float* factor, int64_t factors, T* x, int64_t n) {
  allow_successor();
  await_predecessor();
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i < n) x[i] = from_f32<T>(to_f32(x[i]) * factor[factors == 1 ? 0 : i % factors]);
}

}  // namespace

void add(Exec& ex, ConstTensorView h, TensorView x, float factor) {
  const int64_t n = x.numel();
  FEWBIT_ASSERT(h.numel() == n && h.dtype == x.dtype);
  if (n == 0) return;
  const auto blocks = static_cast<unsigned>((n + kThreads * kN - 1) / (kThreads * kN));
  dispatch_f32_bf16(x.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    const bool vectors = aligned16(h.as<T>()) && aligned16(x.as<T>());
    launch_overlapping(ex.cuda_state(), add_kernel<T>, dim3(blocks), dim3(kThreads), 0, h.as<T>(), x.as<T>(), factor, n,
                       vectors);
  });
}

void scale_by(Exec& ex, ConstTensorView factor, TensorView x) {
  const int64_t n = x.numel();
  if (n == 0) return;
  dispatch_f32_bf16(x.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    launch_overlapping(ex.cuda_state(), scale_by_kernel<T>, dim3(static_cast<unsigned>((n + kThreads - 1) / kThreads)),
                       dim3(kThreads), 0, factor.as<float>(), factor.numel(), x.as<T>(), n);
  });
}

}  // namespace fewbit::cuda
