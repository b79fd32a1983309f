// A row is read twice, the second time from the cache: once for its sum of squares, once to be scaled. Narrow
// rows (the heads of a per-head norm) have a warp each, wide ones a block each, so that both fill the GPU. A
// thread writes only what it has read itself, which is what lets y be x.
#include "kernels/launch.cuh"
#include "kernels/norm.h"
#include "kernels/reduce.cuh"
#include "kernels/vec.cuh"

namespace fewbit::cuda {
namespace {

constexpr int kWarpColumns = 1024;  // rows up to here have a warp
constexpr int kBlockThreads = 512;  // a wide row's block: 8 values a thread at 4096 columns
constexpr int kWarpRows = 4;        // rows a block of the narrow variant

template <class T, int kN>
__device__ __forceinline__ float squares(const T* x, int64_t cols, int first, int step) {
  float sum = 0;
  for (int64_t c = static_cast<int64_t>(first) * kN; c < cols; c += static_cast<int64_t>(step) * kN) {
    const auto v = load_vec<T, kN>(x + c);
#pragma unroll
    for (int i = 0; i < kN; ++i) {
      const float f = to_f32(v[i]);
      sum = fmaf(f, f, sum);
    }
  }
  return sum;
}

template <class T, int kN>
__device__ __forceinline__ void scale_row(const T* x, const T* __restrict__ weight, float inv, float offset,
                                          T* y, int64_t cols, int first, int step) {
  for (int64_t c = static_cast<int64_t>(first) * kN; c < cols; c += static_cast<int64_t>(step) * kN) {
    const auto v = load_vec<T, kN>(x + c);
    const auto w = load_vec<T, kN>(weight + c);
    Vec<T, kN> out;
#pragma unroll
    for (int i = 0; i < kN; ++i) out[i] = from_f32<T>(to_f32(v[i]) * inv * (to_f32(w[i]) + offset));
    store_vec(y + c, out);
  }
}

// kN: values per thread and step, 16 bytes or one. kWarp: a warp per row, kWarpRows rows a block; else a
// block per row.
template <class T, int kN, bool kWarp>
__global__ void rms_norm_kernel(const T* x,                    // [rows, cols], may be y
                                const T* __restrict__ weight,  // [cols]
                                float eps, float offset,
                                T* y,  // [rows, cols]
                                int64_t rows, int64_t cols) {
  __shared__ float partial[32];
  allow_successor();
  await_predecessor();
  const int64_t row = kWarp ? static_cast<int64_t>(blockIdx.x) * kWarpRows + threadIdx.x / 32 : blockIdx.x;
  if (row >= rows) return;  // a whole warp
  const int first = kWarp ? threadIdx.x % 32 : threadIdx.x, step = kWarp ? 32 : kBlockThreads;
  const float mine = squares<T, kN>(x + row * cols, cols, first, step);
  const float sum = kWarp ? warp_sum(mine) : block_sum(mine, partial);
  const float inv = 1.f / sqrtf(sum / static_cast<float>(cols) + eps);
  scale_row<T, kN>(x + row * cols, weight, inv, offset, y + row * cols, cols, first, step);
}

// Variants: {f32, bf16} x {16 bytes, one value} x {warp, block}.
template <class T, int kN>
void launch(CudaState& s, const T* x, const T* weight, float eps, float offset, TensorView y) {
  const int64_t rows = y.rows(), cols = y.cols();
  if (cols <= kWarpColumns)
    launch_overlapping(s, rms_norm_kernel<T, kN, true>,
                       dim3(static_cast<unsigned>((rows + kWarpRows - 1) / kWarpRows)), dim3(32 * kWarpRows),
                       0, x, weight, eps, offset, y.as<T>(), rows, cols);
  else
    launch_overlapping(s, rms_norm_kernel<T, kN, false>, dim3(static_cast<unsigned>(rows)),
                       dim3(kBlockThreads), 0, x, weight, eps, offset, y.as<T>(), rows, cols);
}

}  // namespace

void rms_norm(Exec& ex, ConstTensorView x, ConstTensorView weight, float eps, float weight_offset,
              TensorView y) {
  FEWBIT_ASSERT(x.dtype == y.dtype && x.dtype == weight.dtype && x.shape == y.shape);
  if (x.numel() == 0) return;
  FEWBIT_ASSERT(weight.numel() == x.cols());
  CudaState& s = ex.cuda_state();
  dispatch_f32_bf16(x.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    const bool vectors = aligned16(x.as<T>(), x.cols()) && aligned16(y.as<T>()) && aligned16(weight.as<T>());
    if (vectors)
      launch<T, kVec16<T>>(s, x.as<T>(), weight.as<T>(), eps, weight_offset, y);
    else
      launch<T, 1>(s, x.as<T>(), weight.as<T>(), eps, weight_offset, y);
  });
}

}  // namespace fewbit::cuda
