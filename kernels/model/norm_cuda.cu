// RMS norm in three kernels, so that narrow and wide rows both fill the GPU:
//   columns                                        kernel                  a row is
//   up to kWarpColumns (per-head norms)            rms_norm_kernel, warp   read twice, the second time from the cache
//   up to kMostHeld 16-byte vectors a thread       held_rms_norm_kernel    held in registers while its sum is made, and
//                                                                          its weight is loaded at the same time
//   more, or rows that are not 16-byte aligned     rms_norm_kernel, block  read twice, as above
// Layer norm has one kernel, a block per row, which is read three times.
// A thread writes only what it has read itself, which is what lets y be x.
#include "kernels/device/launch.cuh"
#include "kernels/model/norm.cuh"
#include "kernels/model/norm.h"

namespace fewbit::cuda {
namespace {

constexpr int kWarpColumns = 1024;  // rows up to here have a warp
constexpr int kBlockThreads = 512;  // a wide row's block: 8 values a thread at 4096 columns
constexpr int kWarpRows = 4;        // rows a block of the narrow variant
constexpr int kMostHeld = 4;        // vectors of a row that a thread keeps

// kN: values per thread and step, 16 bytes or one. kWarp: a warp per row, kWarpRows rows a block; else a block per row.
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
  x += row * cols, y += row * cols;
  if constexpr (kWarp) return norm_row<T, kN>(x, weight, eps, offset, y, cols, threadIdx.x % 32);
  const float sum = block_sum(squares<T, kN>(x, cols, threadIdx.x, kBlockThreads), partial);
  scale_row<T, kN>(x, weight, inverse_root(sum, cols, eps), offset, y, cols, threadIdx.x, kBlockThreads);
}

// A block per row, which has at most kHeld vectors for each thread.
template <class T, int kHeld>
__global__ void __launch_bounds__(kBlockThreads) held_rms_norm_kernel(const T* x,  // [rows, cols], may be y
                                                                      const T* __restrict__ weight,  // [cols]
                                                                      float eps, float offset,
                                                                      T* y,  // [rows, cols]
                                                                      int64_t cols) {
  constexpr int kN = kVec16<T>;
  __shared__ float partial[32];
  allow_successor();
  await_predecessor();
  const int64_t row = blockIdx.x * cols;
  const auto at = [](int i) { return static_cast<int64_t>(i * kBlockThreads + threadIdx.x) * kN; };
  Vec<T, kN> v[kHeld], w[kHeld];
#pragma unroll
  for (int i = 0; i < kHeld; ++i)
    if (at(i) < cols) v[i] = load_vec<T, kN>(x + row + at(i)), w[i] = load_vec<T, kN>(weight + at(i));
  float mine = 0;
#pragma unroll
  for (int i = 0; i < kHeld; ++i)
    if (at(i) < cols) mine = squares<T, kN>(v[i], mine);
  const float inv = inverse_root(block_sum(mine, partial), cols, eps);
#pragma unroll
  for (int i = 0; i < kHeld; ++i)
    if (at(i) < cols) store_vec(y + row + at(i), scaled<T, kN>(v[i], w[i], inv, offset));
}

// A block per row: its mean, then the mean square of what is left, then the row.
template <class T>
__global__ void __launch_bounds__(kBlockThreads) layer_norm_kernel(const T* x,  // [rows, cols], may be y
                                                                   const T* __restrict__ weight,  // [cols]
                                                                   const T* __restrict__ bias,    // [cols] or null
                                                                   float eps,
                                                                   T* y,  // [rows, cols]
                                                                   int64_t cols) {
  __shared__ float partial[32];
  allow_successor();
  await_predecessor();
  const T* row = x + blockIdx.x * cols;
  float sum = 0, squares = 0;
  for (int64_t c = threadIdx.x; c < cols; c += kBlockThreads) sum += to_f32(row[c]);
  const float mean = block_sum(sum, partial) / static_cast<float>(cols);
  __syncthreads();  // the partial sums are read
  for (int64_t c = threadIdx.x; c < cols; c += kBlockThreads) {
    const float v = to_f32(row[c]) - mean;
    squares = fmaf(v, v, squares);
  }
  const float inv = 1.f / sqrtf(block_sum(squares, partial) / static_cast<float>(cols) + eps);
  for (int64_t c = threadIdx.x; c < cols; c += kBlockThreads) {
    const float shift = bias == nullptr ? 0.f : to_f32(bias[c]);
    y[blockIdx.x * cols + c] = from_f32<T>((to_f32(row[c]) - mean) * inv * to_f32(weight[c]) + shift);
  }
}

// Variants: {f32, bf16} x ({16 bytes, one value} x {warp, block}, {a row in 1, 2, 4 vectors a thread}).
template <class T, int kN>
void launch(CudaState& s, const T* x, const T* weight, float eps, float offset, TensorView y) {
  const int64_t rows = y.rows(), cols = y.cols();
  if (cols <= kWarpColumns)
    launch_overlapping(s, rms_norm_kernel<T, kN, true>, dim3(static_cast<unsigned>((rows + kWarpRows - 1) / kWarpRows)),
                       dim3(32 * kWarpRows), 0, x, weight, eps, offset, y.as<T>(), rows, cols);
  else if (kN > 1 && cols <= int64_t{kMostHeld} * kBlockThreads * kVec16<T>) {
    const int64_t held = (cols + kBlockThreads * kVec16<T> - 1) / (kBlockThreads * kVec16<T>);
    auto* kernel = held == 1   ? held_rms_norm_kernel<T, 1>
                   : held == 2 ? held_rms_norm_kernel<T, 2>
                               : held_rms_norm_kernel<T, kMostHeld>;
    launch_overlapping(s, kernel, dim3(static_cast<unsigned>(rows)), dim3(kBlockThreads), 0, x, weight, eps, offset,
                       y.as<T>(), cols);
  } else
    launch_overlapping(s, rms_norm_kernel<T, kN, false>, dim3(static_cast<unsigned>(rows)), dim3(kBlockThreads), 0, x,
                       weight, eps, offset, y.as<T>(), rows, cols);
}

}  // namespace

void rms_norm(Exec& ex, ConstTensorView x, ConstTensorView weight, float eps, float weight_offset, TensorView y) {
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

void layer_norm(Exec& ex, ConstTensorView x, ConstTensorView weight, const ConstTensorView* bias, float eps,
                TensorView y) {
  if (x.numel() == 0) return;
  dispatch_f32_bf16(x.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    launch_overlapping(ex.cuda_state(), layer_norm_kernel<T>, dim3(static_cast<unsigned>(x.rows())),
                       dim3(kBlockThreads), 0, x.as<T>(), weight.as<T>(), bias == nullptr ? nullptr : bias->as<T>(),
                       eps, y.as<T>(), x.cols());
  });
}

}  // namespace fewbit::cuda
