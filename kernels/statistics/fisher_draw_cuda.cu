// Draws of the Fisher information of logits: a block has a row, which it reads three times; bound by memory. Sums in
// f32, those of a thread first and then over the threads in a fixed order.
#include "kernels/device/reduce.cuh"
#include "kernels/exec/exec_cuda.h"
#include "kernels/statistics/fisher_draw.h"

namespace fewbit::cuda {
namespace {

constexpr int kThreads = 512;

__device__ __forceinline__ float signed_root(uint64_t seed, int64_t row, int64_t c, float p) {
  const float root = sqrtf(p);
  return (fisher_signs(seed, row, c / 64) >> (c % 64) & 1) != 0 ? root : -root;
}

__global__ void fisher_draw_kernel(float softcap, uint64_t seed, int64_t first_row, float* __restrict__ logits,
                                   int64_t vocab) {
  __shared__ float partial[32];
  float* z = logits + blockIdx.x * vocab;
  const int64_t row = first_row + blockIdx.x;
  float top = -INFINITY;
  for (int64_t c = threadIdx.x; c < vocab; c += kThreads) top = fmaxf(top, z[c]);
  top = block_max(top, partial);
  float sum = 0;
  for (int64_t c = threadIdx.x; c < vocab; c += kThreads) sum += expf(z[c] - top);
  const float scale = 1.f / block_sum(sum, partial);
  float mean = 0;
  for (int64_t c = threadIdx.x; c < vocab; c += kThreads) mean += signed_root(seed, row, c, expf(z[c] - top) * scale);
  mean = block_sum(mean, partial);
  for (int64_t c = threadIdx.x; c < vocab; c += kThreads) {
    const float p = expf(z[c] - top) * scale, share = softcap > 0 ? z[c] / softcap : 0.f;
    z[c] = (signed_root(seed, row, c, p) - p * mean) * (1.f - share * share);
  }
}

}  // namespace

void fisher_draw(Exec& ex, float softcap, uint64_t seed, int64_t first_row, TensorView logits) {
  FEWBIT_ASSERT(logits.dtype == DType::f32 && logits.cols() > 0);
  if (logits.rows() == 0) return;
  fisher_draw_kernel<<<static_cast<unsigned>(logits.rows()), kThreads, 0, ex.cuda_state().stream>>>(
      softcap, seed, first_row, logits.as<float>(), logits.cols());
  FEWBIT_CUDA_LAUNCHED();
}

}  // namespace fewbit::cuda
