// Layer normalisation with a bias: a warp has a row, which it reads three times; for rows of a few hundred values.
#include "kernels/device/launch.cuh"
#include "kernels/device/reduce.cuh"
#include "kernels/device/vec.cuh"
#include "kernels/model/biased_norm.h"

namespace fewbit::cuda {
namespace {

constexpr int kThreads = 128;

template <class T>
__global__ void biased_norm_kernel(const T* x, const T* weight, const T* bias, float eps, T* y, int64_t rows,
                                   int64_t cols) {
  allow_successor();
  await_predecessor();
  const int64_t r = static_cast<int64_t>(blockIdx.x) * (kThreads / 32) + threadIdx.x / 32;
  const int lane = threadIdx.x % 32;
  if (r >= rows) return;
  const T* row = x + r * cols;
  float sum = 0;
  for (int64_t c = lane; c < cols; c += 32) sum += to_f32(row[c]);
  const float mean = warp_sum(sum) / static_cast<float>(cols);
  float squares = 0;
  for (int64_t c = lane; c < cols; c += 32) squares += (to_f32(row[c]) - mean) * (to_f32(row[c]) - mean);
  const float inverse = rsqrtf(warp_sum(squares) / static_cast<float>(cols) + eps);
  for (int64_t c = lane; c < cols; c += 32)
    y[r * cols + c] = from_f32<T>((to_f32(row[c]) - mean) * inverse * to_f32(weight[c]) + to_f32(bias[c]));
}

}  // namespace

void biased_norm(Exec& ex, ConstTensorView x, ConstTensorView weight, ConstTensorView bias, float eps, TensorView y) {
  if (x.numel() == 0) return;
  constexpr int64_t kRows = kThreads / 32;
  dispatch_f32_bf16(x.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    launch_overlapping(ex.cuda_state(), biased_norm_kernel<T>,
                       dim3(static_cast<unsigned>((x.rows() + kRows - 1) / kRows)), dim3(kThreads), 0, x.as<T>(),
                       weight.as<T>(), bias.as<T>(), eps, y.as<T>(), x.rows(), x.cols());
  });
}

}  // namespace fewbit::cuda
