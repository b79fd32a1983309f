// Small matrix edits: elementwise kernels, bound by memory.
#include "kernels/device/vec.cuh"
#include "kernels/exec/exec_cuda.h"
#include "kernels/grids/two_of_four.h"
#include "kernels/quantize/matrix_edit.h"

namespace fewbit::cuda {
namespace {

constexpr int kThreads = 256;

__global__ void diagonal_kernel(const float* __restrict__ h, float* __restrict__ d, int64_t n) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i < n) d[i] = h[i * n + i];
}

__global__ void add_diagonal_kernel(const float* __restrict__ d, float* __restrict__ h, int64_t n) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i < n) h[i * n + i] += d[i];
}

__global__ void set_diagonal_kernel(const float* __restrict__ d, float* __restrict__ h, int64_t n) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (i < n) h[i * n + i] = d[i];
}

__global__ void zero_columns_kernel(const uint8_t* __restrict__ marked, float* __restrict__ w, int64_t n) {
  const int64_t row = blockIdx.x;
  for (int64_t i = threadIdx.x; i < n; i += kThreads)
    if (marked[i]) w[row * n + i] = 0;
}

// A quad a thread.
__global__ void prune_quads_kernel(const float* __restrict__ s, float* __restrict__ w, int64_t n) {
  float* row = w + static_cast<int64_t>(blockIdx.x) * n;
  for (int64_t i = 4 * static_cast<int64_t>(threadIdx.x); i < n; i += 4 * kThreads) {
    float quad[4], weight[4];
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      quad[k] = row[i + k];
      weight[k] = s ? s[i + k] : 1.f;
    }
    const int stay = larger_pair(quad, weight);
#pragma unroll
    for (int k = 0; k < 4; ++k)
      if (!(stay >> k & 1)) row[i + k] = 0;
  }
}

// One factor per row where kByRow, else per column.
template <bool kByRow>
__global__ void scale_kernel(const float* __restrict__ s, float* __restrict__ w, int64_t n) {
  const int64_t row = blockIdx.x;
  for (int64_t i = threadIdx.x; i < n; i += kThreads) w[row * n + i] *= s[kByRow ? row : i];
}

template <class T>  // f32 or u8
__global__ void permute_kernel(const T* __restrict__ x, const int32_t* __restrict__ row_of,
                               const int32_t* __restrict__ col_of, T* __restrict__ y, int64_t from_cols, int64_t cols) {
  const int64_t row = blockIdx.x;
  const T* from = x + (row_of ? row_of[row] : row) * from_cols;
  for (int64_t j = threadIdx.x; j < cols; j += kThreads) y[row * cols + j] = from[col_of ? col_of[j] : j];
}

// count += the bad values; whole numbers, so the order of the additions does not matter.
__global__ void count_nonfinite_kernel(const float* __restrict__ x, unsigned long long* count, int64_t numel) {
  const int64_t step = static_cast<int64_t>(gridDim.x) * kThreads;
  unsigned long long here = 0;
  for (int64_t k = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; k < numel; k += step)
    here += !isfinite(x[k]);
  if (here) atomicAdd(count, here);
}

}  // namespace

void diagonal(Exec& ex, ConstTensorView h, TensorView d) {
  const int64_t n = h.rows();
  FEWBIT_ASSERT(h.cols() == n && d.numel() == n);
  diagonal_kernel<<<grid_for(n, kThreads), kThreads, 0, ex.cuda_state().stream>>>(h.as<float>(), d.as<float>(), n);
  FEWBIT_CUDA_LAUNCHED();
}

void add_diagonal(Exec& ex, ConstTensorView d, TensorView h) {
  const int64_t n = h.rows();
  FEWBIT_ASSERT(h.cols() == n && d.numel() == n);
  add_diagonal_kernel<<<grid_for(n, kThreads), kThreads, 0, ex.cuda_state().stream>>>(d.as<float>(), h.as<float>(), n);
  FEWBIT_CUDA_LAUNCHED();
}

void set_diagonal(Exec& ex, ConstTensorView d, TensorView h) {
  const int64_t n = h.rows();
  FEWBIT_ASSERT(h.cols() == n && d.numel() == n);
  set_diagonal_kernel<<<grid_for(n, kThreads), kThreads, 0, ex.cuda_state().stream>>>(d.as<float>(), h.as<float>(), n);
  FEWBIT_CUDA_LAUNCHED();
}

void zero_columns(Exec& ex, ConstTensorView marked, TensorView w) {
  FEWBIT_ASSERT(marked.numel() == w.cols());
  if (w.rows() == 0) return;
  zero_columns_kernel<<<static_cast<unsigned>(w.rows()), kThreads, 0, ex.cuda_state().stream>>>(
      marked.as<uint8_t>(), w.as<float>(), w.cols());
  FEWBIT_CUDA_LAUNCHED();
}

void prune_quads(Exec& ex, ConstTensorView s, TensorView w) {
  if (w.rows() == 0) return;
  prune_quads_kernel<<<static_cast<unsigned>(w.rows()), kThreads, 0, ex.cuda_state().stream>>>(
      s.data ? s.as<float>() : nullptr, w.as<float>(), w.cols());
  FEWBIT_CUDA_LAUNCHED();
}

void scale_columns(Exec& ex, ConstTensorView s, TensorView w) {
  FEWBIT_ASSERT(s.numel() == w.cols());
  if (w.rows() == 0) return;
  scale_kernel<false><<<static_cast<unsigned>(w.rows()), kThreads, 0, ex.cuda_state().stream>>>(
      s.as<float>(), w.as<float>(), w.cols());
  FEWBIT_CUDA_LAUNCHED();
}

void scale_rows(Exec& ex, ConstTensorView s, TensorView w) {
  FEWBIT_ASSERT(s.numel() == w.rows());
  if (w.rows() == 0) return;
  scale_kernel<true><<<static_cast<unsigned>(w.rows()), kThreads, 0, ex.cuda_state().stream>>>(s.as<float>(),
                                                                                               w.as<float>(), w.cols());
  FEWBIT_CUDA_LAUNCHED();
}

void permute(Exec& ex, ConstTensorView x, ConstTensorView row_of, ConstTensorView col_of, TensorView y) {
  FEWBIT_ASSERT((row_of.data || x.rows() == y.rows()) && (col_of.data || x.cols() == y.cols()));
  FEWBIT_ASSERT(x.dtype == y.dtype && x.data != y.data);
  FEWBIT_ASSERT(x.dtype == DType::f32 || x.dtype == DType::u8);
  if (y.rows() == 0) return;
  const int32_t* rows = row_of.data ? row_of.as<int32_t>() : nullptr;
  const int32_t* cols = col_of.data ? col_of.as<int32_t>() : nullptr;
  const unsigned blocks = static_cast<unsigned>(y.rows());
  if (x.dtype == DType::f32)
    permute_kernel<<<blocks, kThreads, 0, ex.cuda_state().stream>>>(x.as<float>(), rows, cols, y.as<float>(), x.cols(),
                                                                    y.cols());
  else
    permute_kernel<<<blocks, kThreads, 0, ex.cuda_state().stream>>>(x.as<uint8_t>(), rows, cols, y.as<uint8_t>(),
                                                                    x.cols(), y.cols());
  FEWBIT_CUDA_LAUNCHED();
}

int64_t count_nonfinite(Exec& ex, ConstTensorView x) {
  const Tensor count = ex.alloc_zeros(DType::u64, {1});
  count_nonfinite_kernel<<<grid_for(x.numel(), kThreads, 4096), kThreads, 0, ex.cuda_state().stream>>>(
      x.as<float>(), reinterpret_cast<unsigned long long*>(count.as<uint64_t>()), x.numel());
  FEWBIT_CUDA_LAUNCHED();
  return static_cast<int64_t>(ex.to_host(count).as<uint64_t>()[0]);
}

}  // namespace fewbit::cuda
