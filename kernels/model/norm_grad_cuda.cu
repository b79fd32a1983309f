// Gradient of the RMS norm: a block has a row. Both sums of the row in one pass, then the row again, from the cache. A
// thread writes only what it alone reads, which is what lets dx be dy. Narrow rows (heads) have blocks of one warp.
#include "kernels/device/reduce.cuh"
#include "kernels/exec/exec_cuda.h"
#include "kernels/model/norm_grad.h"

namespace fewbit::cuda {
namespace {

__global__ void rms_norm_grad_kernel(const float* __restrict__ x,       // [rows, cols]
                                     const float* __restrict__ weight,  // [cols]
                                     float eps, float offset,
                                     const float* dy,  // [rows, cols], may be dx
                                     float beta, float* dx, int64_t cols) {
  __shared__ float partial[32];
  const int64_t base = static_cast<int64_t>(blockIdx.x) * cols;
  float squares = 0, product = 0;
  for (int64_t c = threadIdx.x; c < cols; c += blockDim.x) {
    const float v = x[base + c];
    squares = fmaf(v, v, squares);
    product = fmaf(v, dy[base + c] * (weight[c] + offset), product);
  }
  squares = block_sum(squares, partial);
  product = block_sum(product, partial);
  const float n = static_cast<float>(cols), inverse = 1.f / sqrtf(squares / n + eps);
  const float along = inverse * inverse * inverse * (product / n);
  for (int64_t c = threadIdx.x; c < cols; c += blockDim.x) {
    const float value = inverse * dy[base + c] * (weight[c] + offset) - along * x[base + c];
    dx[base + c] = beta == 0 ? value : beta * dx[base + c] + value;
  }
}

}  // namespace

void rms_norm_grad(Exec& ex, ConstTensorView x, ConstTensorView weight, float eps, float weight_offset,
                   ConstTensorView dy, float beta, TensorView dx) {
  const int64_t rows = x.rows(), cols = x.cols();
  FEWBIT_ASSERT(weight.numel() == cols && dy.shape == x.shape && dx.shape == x.shape);
  if (x.numel() == 0) return;
  const int threads = cols <= 256 ? 32 : 256;
  rms_norm_grad_kernel<<<static_cast<unsigned>(rows), threads, 0, ex.cuda_state().stream>>>(
      x.as<float>(), weight.as<float>(), eps, weight_offset, dy.as<float>(), beta, dx.as<float>(), cols);
  FEWBIT_CUDA_LAUNCHED();
}

}  // namespace fewbit::cuda
