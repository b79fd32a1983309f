// route: one warp a token; lane l holds experts l, l + 32, …. Its scores, and what the choice goes by, stand in shared
// memory. The i-th choice is the best expert that comes after the choice before it in the order (descending, then index
// ascending), so nothing has to be marked as taken. Groups are ranked by a lane each. Bytes: the logits once.
// scatter_add_rows: one block a row of x; the rows of y are distinct, so no two blocks write to one.
#include "kernels/device/launch.cuh"
#include "kernels/device/logit_order.cuh"
#include "kernels/device/reduce.cuh"
#include "kernels/device/vec.cuh"
#include "kernels/exec/exec_cuda.h"
#include "kernels/model/route.h"
#include "src/core/error.h"

namespace fewbit::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;  // tokens of a block
constexpr int kNone = 0x7fffffff;

struct Choice {
  float logit;
  int expert;
};

// True where a comes before b.
__device__ __forceinline__ bool before(Choice a, Choice b) {
  return a.logit != b.logit ? a.logit > b.logit : a.expert < b.expert;
}

// The one of the lanes' choices that comes before all others, by two reductions of integers: of the logits as numbers
// in their order, then of the experts that have the largest.
__device__ __forceinline__ Choice warp_best(Choice c) {
  const uint32_t order = ordered_bits(c.logit);
  const uint32_t best = __reduce_max_sync(0xffffffffu, order);
  const auto expert =
      static_cast<int>(__reduce_min_sync(0xffffffffu, static_cast<unsigned>(order == best ? c.expert : kNone)));
  return {logit_of_bits(best), expert};
}

struct Rule {
  bool renormalise;
  RouteScore score;
  float scaling;
  int groups, best_groups, judges;
  const float* bias;  // or null
  float logit_scale;
  const float* expert_scale;  // or null
};

__device__ __forceinline__ float score_of(const Rule& rule, float z, float max) {
  const float scaled = rule.logit_scale * z;
  switch (rule.score) {
    case RouteScore::softmax:
      return expf(rule.logit_scale * (z - max));
    case RouteScore::root_softplus:
      return isnan(z) ? z : sqrtf(fmaxf(scaled, 0.f) + log1pf(expf(-fabsf(scaled))));
    case RouteScore::given:
      return scaled;
    case RouteScore::sigmoid:
      break;
  }
  return 1.f / (1.f + expf(-scaled));
}

// -inf for the choice of all experts outside of the best groups; lane g ranks groups g, g + 32, ….
__device__ __forceinline__ void keep_best_groups(const Rule& rule, const float* score, float* choice, float* two,
                                                 int experts, int lane) {
  const int each = experts / rule.groups;
  for (int g = lane; g < rule.groups; g += 32) {
    float first = -INFINITY, second = -INFINITY;
    for (int e = g * each; e < (g + 1) * each; ++e) {
      const float s = rank_of(rule.bias ? choice[e] : score[e]);
      second = fmaxf(second, fminf(first, s));
      first = fmaxf(first, s);
    }
    two[g] = rule.judges == 1 ? first : first + second;
  }
  __syncwarp();
  for (int g = lane; g < rule.groups; g += 32) {
    int better = 0;
    for (int o = 0; o < rule.groups; ++o) better += before({two[o], o}, {two[g], g});
    if (better < rule.best_groups) continue;
    for (int e = g * each; e < (g + 1) * each; ++e) choice[e] = -INFINITY;
  }
  __syncwarp();
}

__global__ void route_kernel(const float* __restrict__ logits,  // [tokens, experts]
                             Rule rule,
                             int32_t* __restrict__ ids,    // [tokens, top_k]
                             float* __restrict__ weights,  // [tokens, top_k]
                             int64_t tokens, int experts, int top_k) {
  extern __shared__ float shared[];  // of each warp: scores, choices [experts], groups [groups]
  allow_successor();
  await_predecessor();
  const int64_t token = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / 32;
  const int lane = threadIdx.x % 32;
  if (token >= tokens) return;
  float* score = shared + (threadIdx.x / 32) * (2 * experts + rule.groups);
  float* choice = score + experts;
  const float* z = logits + token * experts;
  ids += token * top_k;
  weights += token * top_k;
  float max = -INFINITY, all = 0;
  for (int e = lane; e < experts; e += 32) max = fmaxf(max, rank_of(z[e]));
  max = warp_max(max);
  for (int e = lane; e < experts; e += 32) {
    score[e] = score_of(rule, z[e], max);
    all += score[e];
  }
  all = warp_sum(all);
  for (int e = lane; e < experts; e += 32) {
    if (rule.score == RouteScore::softmax) score[e] /= all;
    choice[e] = rank_of(rule.bias ? score[e] + rule.bias[e] : z[e]);
  }
  __syncwarp();
  if (rule.groups > 1) keep_best_groups(rule, score, choice, choice + experts, experts, lane);
  Choice last{INFINITY, -1};
  float chosen = 1e-20f;
  for (int i = 0; i < top_k; ++i) {
    Choice best{-INFINITY, kNone};
    for (int e = lane; e < experts; e += 32) {
      const Choice c{choice[e], e};
      if (before(last, c) && before(c, best)) best = c;
    }
    last = warp_best(best);
    chosen += score[last.expert];
    if (lane == 0) ids[i] = last.expert;
  }
  __syncwarp();  // lane 0's ids are read by the others
  for (int i = lane; i < top_k; i += 32) {
    const float own = rule.expert_scale ? rule.expert_scale[ids[i]] : 1.f;
    const float weight = score[ids[i]] / (rule.renormalise ? chosen : 1.f) * rule.scaling * own;
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

constexpr int kRouteThreads = 128;

__device__ __forceinline__ float root_softplus(float z) { return sqrtf(fmaxf(z, 0.f) + log1pf(expf(-fabsf(z)))); }

// A block has a token, a thread some of its experts.
template <class T>
__global__ void __launch_bounds__(kRouteThreads)
    token_route_kernel(const float* logits, const int32_t* table, const int32_t* ids, TokenRouteRule rule, int experts,
                       int top_k, T* weights) {
  const int64_t t = blockIdx.x;
  const int32_t* own = table + static_cast<int64_t>(ids[t]) * top_k;
  logits += t * experts;
  float sum = 1e-20f;
  for (int i = 0; i < top_k; ++i) sum += root_softplus(logits[own[i]]);
  for (int e = threadIdx.x; e < experts; e += kRouteThreads) {
    int times = 0;
    for (int i = 0; i < top_k; ++i) times += own[i] == e;
    const float weight = root_softplus(logits[e]) / (rule.renormalise ? sum : 1.f) * rule.scaling;
    weights[t * experts + e] = from_f32<T>(times > 0 ? static_cast<float>(times) * weight : 0.f);
  }
}

}  // namespace

void route(Exec& ex, ConstTensorView logits, const RouteRule& rule, TensorView ids, TensorView weights) {
  const int64_t tokens = logits.rows(), experts = logits.cols(), top_k = ids.cols();
  if (tokens == 0) return;
  const Rule r{rule.renormalise,
               rule.score,
               rule.scaling,
               rule.groups,
               rule.best_groups,
               rule.judges,
               rule.bias.data ? rule.bias.as<float>() : nullptr,
               rule.logit_scale,
               rule.expert_scale.data ? rule.expert_scale.as<float>() : nullptr};
  const size_t shared = kWarps * static_cast<size_t>(2 * experts + rule.groups) * sizeof(float);
  if (shared > 48 * 1024)
    fail(ErrorKind::unsupported, "route: " + std::to_string(experts) + " experts; a GPU takes up to 768");
  launch_overlapping(ex.cuda_state(), route_kernel, dim3(static_cast<unsigned>((tokens + kWarps - 1) / kWarps)),
                     dim3(kThreads), shared, logits.as<float>(), r, ids.as<int32_t>(), weights.as<float>(), tokens,
                     static_cast<int>(experts), static_cast<int>(top_k));
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

void token_route(Exec& ex, ConstTensorView logits, ConstTensorView table, ConstTensorView ids,
                 const TokenRouteRule& rule, TensorView weights) {
  if (logits.rows() == 0) return;
  dispatch_f32_bf16(weights.dtype, [&](auto type) {
    using T = typename decltype(type)::type;
    token_route_kernel<T><<<static_cast<unsigned>(logits.rows()), kRouteThreads, 0, ex.cuda_state().stream>>>(
        logits.as<float>(), table.as<int32_t>(), ids.as<int32_t>(), rule, static_cast<int>(logits.cols()),
        static_cast<int>(table.cols()), weights.as<T>());
  });
  FEWBIT_CUDA_LAUNCHED();
}

}  // namespace fewbit::cuda
