// Distance of two next-token distributions: a block has a row. Three sweeps give the two log-sum-exps and the KL sum in
// f64; five more sweeps a side pick the largest logits one after another. A row (128k f32 at most) stays in L2 between
// sweeps, so device memory is read once a side. Every reduction is a fixed tree, so the bits do not depend on the run.
#include <cfloat>

#include "kernels/exec/exec_cuda.h"
#include "kernels/statistics/divergence.h"

namespace fewbit::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kTop = 5;

struct Best {
  float value;
  int64_t index;
};
__device__ bool better(const Best& a, const Best& b) {
  return a.value > b.value || (a.value == b.value && a.index < b.index);
}

// Result in every thread. `scratch` holds kThreads values.
template <class T, class F>
__device__ T reduce_block(T mine, T* scratch, F combine) {
  scratch[threadIdx.x] = mine;
  __syncthreads();
  for (int step = kThreads / 2; step > 0; step /= 2) {
    if (threadIdx.x < step) scratch[threadIdx.x] = combine(scratch[threadIdx.x], scratch[threadIdx.x + step]);
    __syncthreads();
  }
  const T result = scratch[0];
  __syncthreads();
  return result;
}

// The largest of z that is not among the `taken` picks before it.
__device__ Best next_best(const float* z, int64_t n, const int64_t* picked, int taken, Best* scratch) {
  Best mine{-FLT_MAX, n};
  for (int64_t v = threadIdx.x; v < n; v += kThreads) {
    const Best candidate{z[v], v};
    if (!better(candidate, mine)) continue;
    bool used = false;
    for (int i = 0; i < taken; ++i) used |= picked[i] == v;
    if (!used) mine = candidate;
  }
  return reduce_block(mine, scratch, [](const Best& a, const Best& b) { return better(a, b) ? a : b; });
}

__device__ double log_sum_exp(const float* z, int64_t n, double top, double* scratch) {
  double sum = 0;
  for (int64_t v = threadIdx.x; v < n; v += kThreads) sum += exp(static_cast<double>(z[v]) - top);
  return top + log(reduce_block(sum, scratch, [](double a, double b) { return a + b; }));
}

__global__ void divergence_kernel(const float* __restrict__ base,   // [rows, vocab]
                                  const float* __restrict__ model,  // [rows, vocab]
                                  double* __restrict__ kl, int* __restrict__ top1, int* __restrict__ top5,
                                  int64_t vocab) {
  __shared__ Best best[kThreads];
  __shared__ double sums[kThreads];
  const float* a = base + static_cast<int64_t>(blockIdx.x) * vocab;
  const float* b = model + static_cast<int64_t>(blockIdx.x) * vocab;
  int64_t picked_a[kTop], picked_b[kTop];
  float max_a = 0, max_b = 0;
#pragma unroll
  for (int i = 0; i < kTop; ++i) {
    const Best pa = next_best(a, vocab, picked_a, i, best), pb = next_best(b, vocab, picked_b, i, best);
    picked_a[i] = pa.index;
    picked_b[i] = pb.index;
    if (i == 0) max_a = pa.value, max_b = pb.value;
  }
  const double za = log_sum_exp(a, vocab, max_a, sums), zb = log_sum_exp(b, vocab, max_b, sums);
  double sum = 0;
  for (int64_t v = threadIdx.x; v < vocab; v += kThreads) {
    const double lp = a[v] - za;
    sum += exp(lp) * (lp - (b[v] - zb));
  }
  sum = reduce_block(sum, sums, [](double x, double y) { return x + y; });
  if (threadIdx.x != 0) return;
  int shared = 0;
#pragma unroll
  for (int i = 0; i < kTop; ++i)
#pragma unroll
    for (int j = 0; j < kTop; ++j) shared += picked_a[i] == picked_b[j];
  kl[blockIdx.x] = sum;
  top1[blockIdx.x] = picked_a[0] == picked_b[0];
  top5[blockIdx.x] = shared;
}

}  // namespace

void divergence(Exec& ex, ConstTensorView base, ConstTensorView model, const DivergenceOut& out) {
  const int64_t rows = base.rows(), vocab = base.cols();
  FEWBIT_ASSERT(model.rows() == rows && model.cols() == vocab && vocab >= kTop && out.kl.numel() == rows);
  if (rows == 0) return;
  divergence_kernel<<<static_cast<unsigned>(rows), kThreads, 0, ex.cuda_state().stream>>>(
      base.as<float>(), model.as<float>(), out.kl.as<double>(), out.top1.as<int32_t>(), out.top5.as<int32_t>(), vocab);
  FEWBIT_CUDA_LAUNCHED();
}

}  // namespace fewbit::cuda
