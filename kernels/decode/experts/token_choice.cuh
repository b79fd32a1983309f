#pragma once
// How a warp chooses the experts of one token as route() does (kernels/model/route.h), for kernels whose blocks all
// make the choice: lane l has experts l, l + 32, ….
#include "kernels/decode/experts/few_experts_job.cuh"
#include "kernels/device/logit_order.cuh"
#include "kernels/device/reduce.cuh"

namespace fewbit::cuda::token_experts_step {

using few_experts_step::Pointers;

// What the experts are chosen by: route() with scores by softmax, and nothing else that changes the order.
struct Router {
  const float* logits;  // [experts]
  int experts, top_k;
  bool renormalise;
  float scaling;
};

// The logits of a lane's experts, and which of these have not been taken yet.
template <int kEach>
struct LaneExperts {
  float logit[kEach];
  uint32_t order[kEach];  // 0: not there, or taken

  __device__ __forceinline__ explicit LaneExperts(const Router& r) {
#pragma unroll
    for (int i = 0; i < kEach; ++i) logit[i] = expert(i) < r.experts ? __ldcg(r.logits + expert(i)) : -INFINITY;
#pragma unroll
    for (int i = 0; i < kEach; ++i) order[i] = expert(i) < r.experts ? ordered_bits(rank_of(logit[i])) : 0;
  }
  static __device__ __forceinline__ int expert(int i) { return static_cast<int>(threadIdx.x % 32) + 32 * i; }
  // The best of those that are left, which is one less then; of several alike the first.
  __device__ __forceinline__ int take_best() {
    uint32_t most = order[0];
#pragma unroll
    for (int i = 1; i < kEach; ++i) most = max(most, order[i]);
    most = __reduce_max_sync(0xffffffffu, most);
    uint32_t first = 0xffffffffu;
#pragma unroll
    for (int i = kEach - 1; i >= 0; --i)
      if (order[i] == most) first = static_cast<uint32_t>(expert(i));
    const int best = static_cast<int>(__reduce_min_sync(0xffffffffu, first));
#pragma unroll
    for (int i = 0; i < kEach; ++i)
      if (expert(i) == best) order[i] = 0;
    return best;
  }
  __device__ __forceinline__ int take(int place) {
    int best = take_best();
#pragma unroll 1
    for (int i = 0; i < place; ++i) best = take_best();
    return best;
  }
};

// What the lanes hold of all experts, of which every lane then wants that of one.
template <int kEach>
struct LanePointers {
  uint64_t of[kEach]{};

  template <class Member>
  __device__ __forceinline__ void load(const Pointers* experts, int count, Member Pointers::*member) {
#pragma unroll
    for (int i = 0; i < kEach; ++i)
      if (const int e = LaneExperts<kEach>::expert(i); e < count)
        of[i] = reinterpret_cast<uint64_t>(experts[e].*member);
  }
  __device__ __forceinline__ uint64_t at(int expert) const {
    uint64_t own = 0;
#pragma unroll
    for (int i = 0; i < kEach; ++i)
      if (LaneExperts<kEach>::expert(i) == expert) own = of[i];
    const uint32_t low = __reduce_or_sync(0xffffffffu, static_cast<uint32_t>(own));
    return uint64_t{__reduce_or_sync(0xffffffffu, static_cast<uint32_t>(own >> 32))} << 32 | low;
  }
};

// What the answer of the expert that is chosen c-th, in the order of the experts' numbers, is multiplied by: lane c has
// route()'s share of it, and in which order it was chosen.
struct LaneShare {
  float share;
  int slot;
};
template <int kEach>
__device__ __forceinline__ LaneShare lane_share(const Router& r, LaneExperts<kEach> experts) {
  const int lane = threadIdx.x % 32;
  float most = -INFINITY, all = 0, score[kEach];
#pragma unroll
  for (int i = 0; i < kEach; ++i) most = fmaxf(most, rank_of(experts.logit[i]));
  most = warp_max(most);
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    score[i] = LaneExperts<kEach>::expert(i) < r.experts ? expf(experts.logit[i] - most) : 0.f;
    all += score[i];
  }
  all = warp_sum(all);
  float chosen = 1e-20f, share = 0;
  int own = r.experts;  // of lane i the expert that was chosen i-th
#pragma unroll 1
  for (int c = 0; c < r.top_k; ++c) {
    const int best = experts.take_best();
    float s = 0;
#pragma unroll
    for (int i = 0; i < kEach; ++i)
      if (best / 32 == i) s = score[i] / all;
    s = __shfl_sync(0xffffffffu, s, best % 32);
    chosen += s;
    if (lane == c) own = best, share = s;
  }
  share = isnan(all) ? all : share / (r.renormalise ? chosen : 1.f) * r.scaling;
  int place = 0;
#pragma unroll 1
  for (int c = 0; c < r.top_k; ++c) place += __shfl_sync(0xffffffffu, own, c) < own;
  if (lane >= r.top_k) place = lane;
  int from = lane;  // the lane whose place this lane's number is
#pragma unroll 1
  for (int c = 0; c < r.top_k; ++c)
    if (__shfl_sync(0xffffffffu, place, c) == lane) from = c;
  return {__shfl_sync(0xffffffffu, share, from), from};
}

}  // namespace fewbit::cuda::token_experts_step
