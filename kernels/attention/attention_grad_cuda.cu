// Gradient of causal attention on a GPU: head by head, over all sequences at once, five batched cuBLAS products and two
// row kernels. The scores of one head, [seqs, len, len], are formed whole, the masked half included: that is simple,
// and the products run at the rate of cuBLAS. Heads that share a kv head add to d_k and d_v one after another, so that
// the order of the sums is fixed.
#include "kernels/attention/attention_grad.h"
#include "kernels/device/reduce.cuh"
#include "kernels/exec/exec_cuda.h"

namespace fewbit::cuda {
namespace {

constexpr int kThreads = 256;

// Which keys row i of a [len, len] matrix of scores sees.
struct Visible {
  int64_t begin, end;
};
__device__ __forceinline__ Visible visible(int64_t i, int64_t window) {
  return {window > 0 && i + 1 > window ? i + 1 - window : 0, i + 1};
}

// Scores to weights in place, a block a row; log_sum keeps the logarithm of the sum that the row was divided by.
__global__ void weigh_kernel(float* __restrict__ scores,   // [seqs * len, len]
                             float* __restrict__ log_sum,  // [seqs * len]
                             int64_t len, int64_t window, float softcap) {
  __shared__ float partial[32];
  float* row = scores + static_cast<int64_t>(blockIdx.x) * len;
  const Visible seen = visible(blockIdx.x % len, window);
  float top = -INFINITY;
  for (int64_t j = seen.begin + threadIdx.x; j < seen.end; j += kThreads) {
    if (softcap > 0) row[j] = softcap * tanhf(row[j] / softcap);
    top = fmaxf(top, row[j]);
  }
  top = block_max(top, partial);
  float sum = 0;
  for (int64_t j = seen.begin + threadIdx.x; j < seen.end; j += kThreads) sum += expf(row[j] - top);
  sum = block_sum(sum, partial);
  for (int64_t j = threadIdx.x; j < len; j += kThreads)
    row[j] = j >= seen.begin && j < seen.end ? expf(row[j] - top) / sum : 0.f;
  if (threadIdx.x == 0) log_sum[blockIdx.x] = top + logf(sum);
}

// dP to dS in place, a block a row. A capped score is found again from its weight: S = log P + log_sum.
__global__ void score_grad_kernel(const float* __restrict__ weights, const float* __restrict__ log_sum,
                                  float* __restrict__ grad, int64_t len, int64_t window, float softcap) {
  __shared__ float partial[32];
  const int64_t base = static_cast<int64_t>(blockIdx.x) * len;
  const Visible seen = visible(blockIdx.x % len, window);
  float mean = 0;
  for (int64_t j = seen.begin + threadIdx.x; j < seen.end; j += kThreads)
    mean = fmaf(weights[base + j], grad[base + j], mean);
  mean = block_sum(mean, partial);
  for (int64_t j = threadIdx.x; j < len; j += kThreads) {
    const float p = weights[base + j];
    float g = p > 0 ? p * (grad[base + j] - mean) : 0.f;
    if (softcap > 0 && p > 0) {
      const float capped = (logf(p) + log_sum[blockIdx.x]) / softcap;
      g *= 1.f - capped * capped;
    }
    grad[base + j] = g;
  }
}

// A batch of row-major matrices, `stride` elements from one to the next.
struct Batch {
  float* data;
  int64_t ld, stride;
};
Batch batch(const float* data, int64_t ld, int64_t stride) { return {const_cast<float*>(data), ld, stride}; }

struct Product {
  Batch a, b, c;
  bool ta = false, tb = false;
  int64_t m, n, k;  // c is [m, n]
  float alpha = 1, beta = 0;
};

// c = alpha op(a) op(b) + beta c for every matrix of the batch; column-major cuBLAS is asked for c^T.
void multiply(CudaState& s, int64_t count, const Product& p) {
  FEWBIT_CUBLAS_CALL(cublasSgemmStridedBatched_64(
      s.blas, p.tb ? CUBLAS_OP_T : CUBLAS_OP_N, p.ta ? CUBLAS_OP_T : CUBLAS_OP_N, p.n, p.m, p.k, &p.alpha, p.b.data,
      p.b.ld, p.b.stride, p.a.data, p.a.ld, p.a.stride, &p.beta, p.c.data, p.c.ld, p.c.stride, count));
}

}  // namespace

void attention_grad(Exec& ex, ConstTensorView q, ConstTensorView k, ConstTensorView v, int64_t seqs,
                    const AttentionArgs& a, ConstTensorView dy, const AttentionGrads& grads) {
  const int64_t d = a.head_dim, q_ld = a.heads * d, kv_ld = a.kv_heads * d, len = q.rows() / seqs;
  if (len == 0) return;
  CudaState& s = ex.cuda_state();
  const Tensor weights = ex.alloc(DType::f32, {seqs * len, len}), scores = ex.alloc(DType::f32, {seqs * len, len});
  const Tensor log_sum = ex.alloc(DType::f32, {seqs * len});
  const Batch p = batch(weights.as<float>(), len, len * len), ds = batch(scores.as<float>(), len, len * len);
  const auto rows = static_cast<unsigned>(seqs * len);
  const int64_t group = a.heads / a.kv_heads;
  for (int64_t h = 0; h < a.heads; ++h) {
    const auto of_head = [&](ConstTensorView t) { return batch(t.as<float>() + h * d, q_ld, len * q_ld); };
    const auto of_key_head = [&](ConstTensorView t) {
      return batch(t.as<float>() + h / group * d, kv_ld, len * kv_ld);
    };
    const float add = h % group == 0 ? 0.f : 1.f;
    multiply(s, seqs,
             {.a = of_head(q), .b = of_key_head(k), .c = p, .tb = true, .m = len, .n = len, .k = d, .alpha = a.scale});
    weigh_kernel<<<rows, kThreads, 0, s.stream>>>(weights.as<float>(), log_sum.as<float>(), len, a.window, a.softcap);
    FEWBIT_CUDA_LAUNCHED();
    multiply(
        s, seqs,
        {.a = p, .b = of_head(dy), .c = of_key_head(grads.v), .ta = true, .m = len, .n = d, .k = len, .beta = add});
    multiply(s, seqs, {.a = of_head(dy), .b = of_key_head(v), .c = ds, .tb = true, .m = len, .n = len, .k = d});
    score_grad_kernel<<<rows, kThreads, 0, s.stream>>>(weights.as<float>(), log_sum.as<float>(), scores.as<float>(),
                                                       len, a.window, a.softcap);
    FEWBIT_CUDA_LAUNCHED();
    multiply(s, seqs,
             {.a = ds, .b = of_key_head(k), .c = of_head(grads.q), .m = len, .n = d, .k = len, .alpha = a.scale});
    multiply(s, seqs,
             {.a = ds,
              .b = of_head(q),
              .c = of_key_head(grads.k),
              .ta = true,
              .m = len,
              .n = d,
              .k = len,
              .alpha = a.scale,
              .beta = add});
  }
}

}  // namespace fewbit::cuda
