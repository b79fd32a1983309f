// Distance of two matrices by rows: a block has a row, threads stride over the columns with f64 sums, then a fixed tree
// in shared memory. Reads both matrices once, so it runs at the memory's speed; the order of the sum is fixed by the
// block size.
#include "kernels/exec/exec_cuda.h"
#include "kernels/statistics/squared_error.h"

namespace fewbit::cuda {
namespace {

constexpr int kThreads = 256;

__global__ void squared_error_kernel(const float* __restrict__ a,  // [rows, cols]
                                     const float* __restrict__ b,  // [rows, cols] or null
                                     double* __restrict__ error,   // [rows]
                                     int64_t cols) {
  __shared__ double partial[kThreads];
  const int64_t base = static_cast<int64_t>(blockIdx.x) * cols;
  double sum = 0;
  for (int64_t c = threadIdx.x; c < cols; c += kThreads) {
    const double d = static_cast<double>(a[base + c]) - (b ? b[base + c] : 0.f);
    sum += d * d;
  }
  partial[threadIdx.x] = sum;
  __syncthreads();
  for (int step = kThreads / 2; step > 0; step /= 2) {
    if (threadIdx.x < step) partial[threadIdx.x] += partial[threadIdx.x + step];
    __syncthreads();
  }
  if (threadIdx.x == 0) error[blockIdx.x] = partial[0];
}

}  // namespace

void squared_error(Exec& ex, ConstTensorView a, ConstTensorView b, TensorView error) {
  FEWBIT_ASSERT(error.numel() == a.rows());
  if (a.rows() == 0) return;
  squared_error_kernel<<<static_cast<unsigned>(a.rows()), kThreads, 0, ex.cuda_state().stream>>>(
      a.as<float>(), b.data ? b.as<float>() : nullptr, error.as<double>(), a.cols());
  FEWBIT_CUDA_LAUNCHED();
}

}  // namespace fewbit::cuda
