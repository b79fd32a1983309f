#pragma once
// The routing of a mixture in decode_layers_kernel.cuh: a block has the logits of one expert or a few, and after a
// barrier of the grid every block makes the same choice of them for itself. Only then can weights of experts be asked
// for; those before them lie in the rings by then.
#include "kernels/decode/decode_layers_product.cuh"

namespace fewbit::cuda::decode_step {

#ifdef FEWBIT_SM90A
// Asks for the layer's table of experts; load_routed() waits for it.
__device__ __forceinline__ void fetch_table(const Job& job, const MixtureLayerRecord& layer, MixtureShared& mixture) {
  Weight* table = mixture.table(job);
  for (int i = threadIdx.x; i < job.experts * kExpertWeights; i += kConsumerThreads)
    cp_async16(table + i, layer.experts + i);
  cp_async_commit();
}

// The experts that the logits choose, best first, and their shares: as route() does it. A NaN comes behind all numbers,
// and makes all shares NaN.
__device__ __forceinline__ void choose_experts(const Job& job, MixtureShared& mixture) {
  float* scores = mixture.scores();
  const int padded = (job.experts + 3) / 4 * 4, lanes = job.rank_lanes, lane = threadIdx.x % 32;
  for (int e = threadIdx.x; e < padded; e += kConsumerThreads)
    scores[e] = e < job.experts ? __ldcg(job.logits + e) : -INFINITY;
  consumer_sync();
#pragma unroll 1
  for (int first = 0; first < job.experts; first += kConsumerThreads / lanes) {
    const int e = first + static_cast<int>(threadIdx.x) / lanes;
    const float own = e < job.experts ? fmaxf(scores[e], -INFINITY) : -INFINITY;  // of a NaN: -inf
    int better = 0;
#pragma unroll 4
    for (int o = 4 * (static_cast<int>(threadIdx.x) % lanes); o < padded; o += 4 * lanes) {
      const float4 v = *reinterpret_cast<const float4*>(scores + o);
      const auto before = [&](float z, int of) {
        z = fmaxf(z, -INFINITY);
        return z > own || (z == own && of < e);
      };
      better += before(v.x, o) + before(v.y, o + 1) + before(v.z, o + 2) + before(v.w, o + 3);
    }
    for (int step = 1; step < lanes; step *= 2) better += __shfl_xor_sync(0xffffffffu, better, step);
    if (threadIdx.x % lanes == 0 && e < job.experts && better < job.top_k) mixture.ids[better] = e;
  }
  consumer_sync();
  if (threadIdx.x >= 32) return;
  const Weight* table = mixture.table(job);
  for (int i = lane; i < kExpertWeights * job.top_k; i += 32)
    mixture.chosen[i] = table[mixture.ids[i / kExpertWeights] * kExpertWeights + i % kExpertWeights];
  __syncwarp();
  if (lane == 0) barrier_arrive(&mixture.known);
  const float most = fmaxf(scores[mixture.ids[0]], -INFINITY);
  float all = 0;
  for (int e = lane; e < job.experts; e += 32) all += expf(scores[e] - most);
  all = warp_sum(all);
  const float own = lane < job.top_k ? expf(scores[mixture.ids[lane]] - most) / all : 0.f;
  const float chosen = warp_sum(own) + 1e-20f;
  if (lane < job.top_k)
    mixture.shares[lane] = isnan(all) ? all : own / (job.renormalise ? chosen : 1.f) * job.route_scale;
}

// The norm of the residual stream as the input of gate and up, as load_normed() makes it, and the choice of experts.
template <class Barrier>
__device__ __forceinline__ void load_routed(const Job& job, const LimbInput& input, const MixtureLayerRecord& layer,
                                            Barrier& barrier, float* reduce, float* reduce_again,
                                            MixtureShared& mixture) {
  constexpr int kStride = 8 * kConsumerThreads, kRuns = kMaxRoutedHidden / kStride;
  const int first = 8 * static_cast<int>(threadIdx.x);
  const auto row_of = [&](int e) { return layer.router + static_cast<int64_t>(e) * job.hidden; };
  uint4 weight[kRuns] = {}, row[kRuns] = {}, x[kRuns] = {};
#pragma unroll
  for (int i = 0; i < kRuns; ++i)
    if (const int n = first + i * kStride; n < job.hidden) {
      weight[i] = *reinterpret_cast<const uint4*>(layer.middle_norm + n);
      if (blockIdx.x < job.experts) row[i] = *reinterpret_cast<const uint4*>(row_of(blockIdx.x) + n);
    }
  cp_async_wait<0>();
  barrier.wait();
#pragma unroll
  for (int i = 0; i < kRuns; ++i)
    if (first + i * kStride < job.hidden) x[i] = load8_cg(job.x + first + i * kStride);
  float v[kRuns][8], squares = 0;
#pragma unroll
  for (int i = 0; i < kRuns; ++i) {
    unpack8(x[i], v[i]);
#pragma unroll
    for (int j = 0; j < 8; ++j) squares = fmaf(v[i][j], v[i][j], squares);
  }
  const float inv = 1.f / sqrtf(consumer_sum(squares, reduce) / static_cast<float>(job.hidden) + job.eps);
#pragma unroll
  for (int i = 0; i < kRuns; ++i) {
    float w[8];
    unpack8(weight[i], w);
#pragma unroll
    for (int j = 0; j < 8; ++j) v[i][j] = rounded(v[i][j] * inv * (w[j] + job.weight_offset));
  }
#pragma unroll 1
  for (int e = blockIdx.x; e < job.experts; e += gridDim.x) {
    float sum = 0;
#pragma unroll
    for (int i = 0; i < kRuns; ++i) {
      if (first + i * kStride >= job.hidden) continue;
      if (e != static_cast<int>(blockIdx.x)) row[i] = *reinterpret_cast<const uint4*>(row_of(e) + first + i * kStride);
      float r[8];
      unpack8(row[i], r);
#pragma unroll
      for (int j = 0; j < 8; ++j) sum = fmaf(v[i][j], r[j], sum);
    }
    sum = consumer_sum(sum, reduce_again);
    if (threadIdx.x == 0) __stcg(job.logits + e, sum);
    if (e + static_cast<int>(gridDim.x) < job.experts) consumer_sync();  // the sums of warps have been read
  }
  barrier.arrive();
  const int begin = input.first * kStageK, end = begin + input.needed * kStageK;
#pragma unroll
  for (int i = 0; i < kRuns; ++i) {
    const int n = first + i * kStride;
    if (i * kStride < job.hidden) input.put(n, v[i], n >= begin && n < end);
  }
  barrier.wait();
  choose_experts(job, mixture);
}
#endif

}  // namespace fewbit::cuda::decode_step
