// route: one warp a token; lane l holds experts l, l + 32, …. The i-th choice is the best expert that comes after the
// choice before it in the order (logit descending, index ascending), so nothing has to be marked as taken. Bytes: the
// logits once from memory, top_k times more from the cache. scatter_add_rows: one block a row of x; the rows of y are
// distinct, so no two blocks write to one.
#include "kernels/device/reduce.cuh"
#include "kernels/device/vec.cuh"
#include "kernels/exec/exec_cuda.h"
#include "kernels/model/route.h"

namespace fewbit::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;
constexpr int kNone = 0x7fffffff;

struct Choice {
  float logit;
  int expert;
};

// True where a comes before b.
__device__ __forceinline__ bool before(Choice a, Choice b) {
  return a.logit != b.logit ? a.logit > b.logit : a.expert < b.expert;
}

__device__ __forceinline__ Choice warp_best(Choice c) {
  for (int lane = 16; lane > 0; lane /= 2) {
    const Choice other{__shfl_xor_sync(0xffffffffu, c.logit, lane), __shfl_xor_sync(0xffffffffu, c.expert, lane)};
    if (before(other, c)) c = other;
  }
  return c;
}

__device__ __forceinline__ float rank_of(float z) { return isnan(z) ? -INFINITY : z; }

__global__ void route_kernel(const float* __restrict__ logits,  // [tokens, experts]
                             bool renormalise,
                             int32_t* __restrict__ ids,    // [tokens, top_k]
                             float* __restrict__ weights,  // [tokens, top_k]
                             int64_t tokens, int experts, int top_k) {
  const int64_t token = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / 32;
  const int lane = threadIdx.x % 32;
  if (token >= tokens) return;
  const float* z = logits + token * experts;
  ids += token * top_k;
  weights += token * top_k;
  Choice last{INFINITY, -1};
  float max = 0, chosen = 0;
  for (int i = 0; i < top_k; ++i) {
    Choice best{-INFINITY, kNone};
    for (int e = lane; e < experts; e += 32) {
      const Choice c{rank_of(z[e]), e};
      if (before(last, c) && before(c, best)) best = c;
    }
    last = warp_best(best);
    if (i == 0) max = last.logit;
    chosen += expf(z[last.expert] - max);
    if (lane == 0) ids[i] = last.expert;
  }
  float all = 0;
  for (int e = lane; e < experts; e += 32) all += expf(z[e] - max);
  all = warp_sum(all);
  __syncwarp();  // lane 0's ids are read by the others
  for (int i = lane; i < top_k; i += 32) {
    const float weight = expf(z[ids[i]] - max) / (renormalise ? chosen : all);
    weights[i] = isnan(all) ? all : weight;
  }
}

// kN: values per thread and step; 8 needs cols % 8 == 0 and both matrices aligned.
template <class T, int kN>
__global__ void scatter_add_kernel(const T* __restrict__ x,            // [n, cols]
                                   const int32_t* __restrict__ rows,   // [n]
                                   const float* __restrict__ weights,  // [n]
                                   float* __restrict__ y,              // [tokens, cols]
                                   int64_t cols) {
  const T* from = x + blockIdx.x * cols;
  float* to = y + rows[blockIdx.x] * cols;
  const float w = weights[blockIdx.x];
  for (int64_t c = threadIdx.x * kN; c < cols; c += kThreads * kN) {
    const auto in = load_vec<T, kN>(from + c);
    auto out = load_vec<float, kN>(to + c);
#pragma unroll
    for (int i = 0; i < kN; ++i) out[i] = fmaf(w, to_f32(in[i]), out[i]);
    store_vec(to + c, out);
  }
}

}  // namespace

void route(Exec& ex, ConstTensorView logits, bool renormalise, TensorView ids, TensorView weights) {
  const int64_t tokens = logits.rows(), experts = logits.cols(), top_k = ids.cols();
  FEWBIT_ASSERT(logits.dtype == DType::f32 && ids.dtype == DType::i32 && weights.dtype == DType::f32);
  FEWBIT_ASSERT(ids.rows() == tokens && ids.shape == weights.shape && top_k >= 1 && top_k <= experts);
  if (tokens == 0) return;
  route_kernel<<<static_cast<unsigned>((tokens + kWarps - 1) / kWarps), kThreads, 0, ex.cuda_state().stream>>>(
      logits.as<float>(), renormalise, ids.as<int32_t>(), weights.as<float>(), tokens, static_cast<int>(experts),
      static_cast<int>(top_k));
  FEWBIT_CUDA_LAUNCHED();
}

void scatter_add_rows(Exec& ex, ConstTensorView x, ConstTensorView rows, ConstTensorView weights, TensorView y) {
  const int64_t n = rows.numel(), cols = y.cols();
  FEWBIT_ASSERT(rows.dtype == DType::i32 && weights.dtype == DType::f32 && y.dtype == DType::f32);
  FEWBIT_ASSERT(x.rows() == n && x.cols() == cols && weights.numel() == n);
  if (n == 0) return;
  dispatch_f32_bf16(x.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    const bool vectors = cols % 8 == 0 && aligned16(x.as<T>()) && aligned16(y.as<float>());
    auto* kernel = vectors ? scatter_add_kernel<T, 8> : scatter_add_kernel<T, 1>;
    kernel<<<static_cast<unsigned>(n), kThreads, 0, ex.cuda_state().stream>>>(x.as<T>(), rows.as<int32_t>(),
                                                                              weights.as<float>(), y.as<float>(), cols);
  });
  FEWBIT_CUDA_LAUNCHED();
}

}  // namespace fewbit::cuda
