// Largest and summed magnitude of columns. A thread owns a column of a chunk of kColumnChunk rows and leaves its
// maximum and sum in a buffer; a second kernel takes the chunks of a column in order. Neighbouring threads read
// neighbouring columns, so x is read once at the memory's speed, and the order of every sum is fixed.
#include <algorithm>

#include "kernels/device/vec.cuh"
#include "kernels/exec/exec_cuda.h"
#include "kernels/statistics/column_stats.h"

namespace fewbit::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kInFlight = 8;  // rows that a thread asks for together, so that it waits for the memory once for all

// T: float or __nv_bfloat16. Without a unit nothing is divided: a division in f64 is most of the work.
template <class T, bool kUnit>
__global__ void chunk_kernel(const T* __restrict__ x, const float* __restrict__ unit, float* __restrict__ maxima,
                             double* __restrict__ sums, int64_t rows, int64_t cols, int64_t group) {
  const int64_t j = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (j >= cols) return;
  const int64_t groups = kUnit ? (cols + group - 1) / group : 0;
  const int64_t r0 = static_cast<int64_t>(blockIdx.y) * kColumnChunk;
  const int64_t r1 = r0 + kColumnChunk < rows ? r0 + kColumnChunk : rows;
  float largest = 0;
  double sum = 0;
  const auto take = [&](float value, int64_t r) {
    const float magnitude = fabsf(value);
    if (magnitude > largest) largest = magnitude;
    if constexpr (kUnit)
      sum += static_cast<double>(magnitude) / unit[r * groups + j / group];
    else
      sum += static_cast<double>(magnitude);
  };
  int64_t r = r0;
  for (; r + kInFlight <= r1; r += kInFlight) {
    T values[kInFlight];
#pragma unroll
    for (int k = 0; k < kInFlight; ++k) values[k] = x[(r + k) * cols + j];
#pragma unroll
    for (int k = 0; k < kInFlight; ++k) take(to_f32(values[k]), r + k);
  }
  for (; r < r1; ++r) take(to_f32(x[r * cols + j]), r);
  maxima[blockIdx.y * cols + j] = largest;
  sums[blockIdx.y * cols + j] = sum;
}

template <class T>
void launch_chunks(dim3 grid, cudaStream_t stream, const void* x, const float* unit, const Tensor& maxima,
                   const Tensor& sums, int64_t rows, int64_t cols, int64_t group) {
  const auto kernel = unit ? chunk_kernel<T, true> : chunk_kernel<T, false>;
  kernel<<<grid, kThreads, 0, stream>>>(static_cast<const T*>(x), unit, maxima.as<float>(), sums.as<double>(), rows,
                                        cols, group);
}

__global__ void merge_kernel(const float* __restrict__ maxima, const double* __restrict__ sums,
                             float* __restrict__ absmax, double* __restrict__ abssum, int64_t chunks, int64_t cols) {
  const int64_t j = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (j >= cols) return;
  for (int64_t c = 0; c < chunks; ++c) {
    if (maxima[c * cols + j] > absmax[j]) absmax[j] = maxima[c * cols + j];
    abssum[j] += sums[c * cols + j];
  }
}

}  // namespace

void column_stats(Exec& ex, ConstTensorView x, const ColumnUnit& u, TensorView absmax, TensorView abssum) {
  const int64_t rows = x.rows(), cols = x.cols();
  FEWBIT_ASSERT(absmax.numel() == cols && abssum.numel() == cols);
  FEWBIT_ASSERT(!u.unit.data || (u.group > 0 && u.unit.rows() == rows));
  FEWBIT_ASSERT(x.dtype == DType::f32 || x.dtype == DType::bf16);
  constexpr int64_t kMaxChunks = 32768;  // below the limit of a grid's second axis
  const float* unit = u.unit.data ? u.unit.as<float>() : nullptr;
  const int64_t groups = u.unit.data ? u.unit.cols() : 0;
  const cudaStream_t stream = ex.cuda_state().stream;
  const unsigned across = static_cast<unsigned>((cols + kThreads - 1) / kThreads);
  for (int64_t r = 0; r < rows; r += kMaxChunks * kColumnChunk) {
    const int64_t n = std::min(rows - r, kMaxChunks * kColumnChunk), chunks = (n + kColumnChunk - 1) / kColumnChunk;
    const Tensor maxima = ex.alloc(DType::f32, {chunks, cols}), sums = ex.alloc(DType::f64, {chunks, cols});
    const dim3 grid(across, static_cast<unsigned>(chunks));
    const float* units = unit ? unit + r * groups : nullptr;
    if (x.dtype == DType::f32)
      launch_chunks<float>(grid, stream, x.as<float>() + r * cols, units, maxima, sums, n, cols, u.group);
    else
      launch_chunks<__nv_bfloat16>(grid, stream, static_cast<const __nv_bfloat16*>(x.data) + r * cols, units, maxima,
                                   sums, n, cols, u.group);
    FEWBIT_CUDA_LAUNCHED();
    merge_kernel<<<across, kThreads, 0, stream>>>(maxima.as<float>(), sums.as<double>(), absmax.as<float>(),
                                                  abssum.as<double>(), chunks, cols);
    FEWBIT_CUDA_LAUNCHED();
  }
}

}  // namespace fewbit::cuda
