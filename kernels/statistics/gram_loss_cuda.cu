// The error of a coded linear under a Gram matrix: delta and H widened to f64, one product, one dot per row. The f64
// tensor cores of a data-centre GPU make this as fast as f32 would be, and the terms of a good quantizer's error
// cancel.
#include <algorithm>

#include "kernels/device/reduce.cuh"
#include "kernels/device/vec.cuh"
#include "kernels/exec/exec_cuda.h"
#include "kernels/statistics/gram_loss.h"

namespace fewbit::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int64_t kRowsAtOnce = 4096;

__global__ void widen_kernel(const float* __restrict__ from, double* __restrict__ to, int64_t count) {
  const int64_t step = static_cast<int64_t>(gridDim.x) * kThreads;
  for (int64_t k = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; k < count; k += step) to[k] = from[k];
}

__global__ void difference_kernel(const float* __restrict__ a, const float* __restrict__ b, double* __restrict__ delta,
                                  int64_t count) {
  const int64_t step = static_cast<int64_t>(gridDim.x) * kThreads;
  for (int64_t k = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; k < count; k += step)
    delta[k] = static_cast<double>(a[k]) - static_cast<double>(b[k]);
}

// loss[row] = sum_i delta[row, i] * product[row, i]; a block per row.
__global__ void row_dot_kernel(const double* __restrict__ delta, const double* __restrict__ product,
                               double* __restrict__ loss, int64_t n) {
  __shared__ double room[32];
  const int64_t base = static_cast<int64_t>(blockIdx.x) * n;
  double sum = 0;
  for (int64_t i = threadIdx.x; i < n; i += kThreads) sum += delta[base + i] * product[base + i];
  sum = block_sum(sum, room);
  if (threadIdx.x == 0) loss[blockIdx.x] = sum;
}

}  // namespace

void gram_loss(Exec& ex, ConstTensorView a, ConstTensorView b, ConstTensorView h, TensorView loss) {
  const int64_t out = a.rows(), n = a.cols();
  FEWBIT_ASSERT(a.shape == b.shape && h.rows() == n && h.cols() == n && loss.numel() == out);
  if (out == 0) return;
  CudaState& s = ex.cuda_state();
  const int64_t most = std::min(out, kRowsAtOnce);
  const Tensor wide = ex.alloc(DType::f64, {n, n});
  const Tensor delta = ex.alloc(DType::f64, {most, n}), product = ex.alloc(DType::f64, {most, n});
  widen_kernel<<<grid_for(n * n, kThreads, 8192), kThreads, 0, s.stream>>>(h.as<float>(), wide.as<double>(), n * n);
  FEWBIT_CUDA_LAUNCHED();
  for (int64_t begin = 0; begin < out; begin += most) {
    const int64_t rows = std::min(most, out - begin);
    const double one = 1, zero = 0;
    difference_kernel<<<grid_for(rows * n, kThreads, 8192), kThreads, 0, s.stream>>>(
        a.as<float>() + begin * n, b.as<float>() + begin * n, delta.as<double>(), rows * n);
    FEWBIT_CUDA_LAUNCHED();
    FEWBIT_CUBLAS_CALL(cublasDgemm_64(s.blas, CUBLAS_OP_N, CUBLAS_OP_N, n, rows, n, &one, wide.as<double>(), n,
                                      delta.as<double>(), n, &zero, product.as<double>(), n));
    row_dot_kernel<<<static_cast<unsigned>(rows), kThreads, 0, s.stream>>>(delta.as<double>(), product.as<double>(),
                                                                           loss.as<double>() + begin, n);
    FEWBIT_CUDA_LAUNCHED();
  }
}

}  // namespace fewbit::cuda
