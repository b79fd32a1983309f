#pragma once
// The routing of a mixture in decode_layers_kernel.cuh: a block has the logits of one expert or a few, and after a
// barrier of the grid every block makes the same choice of them for itself. Only then can weights of experts be asked
// for; those before them lie in the rings by then.
#include "kernels/decode/decode_layers_product.cuh"

//
// Of a mixture q, k, v, what attention makes, the stream behind o and down, and the logits are words with a stamp,
// which readers look at until it is the one that they want: no arrival, no counter and no second trip for the values.
// Between gate and up and down, where they would be many, there is a barrier. A stamp counts on through all launches of
// a stack, so that a word never holds the wanted one from before. What follows a product needs all of it, so a block
// that has work to do there is never overtaken; one without work does not read.
namespace fewbit::cuda::decode_step {

#ifdef FEWBIT_SM90A
// The stamp of the stream behind o of the launch's layer `layer`; behind its down the next one. Its logits have it too.
__device__ __forceinline__ uint32_t stamp_of(const Job& job, uint32_t launch, int layer) {
  return launch * static_cast<uint32_t>(job.stamp_stride) + 2 * static_cast<uint32_t>(layer) + 1;
}
__device__ __forceinline__ void put_logit(const Job& job, int expert, float value, uint32_t stamp) {
  const uint64_t word = static_cast<uint64_t>(stamp) << 32 | __float_as_uint(value);
  asm volatile("st.relaxed.gpu.global.u64 [%0], %1;" ::"l"(job.logits + expert), "l"(word) : "memory");
}
__device__ __forceinline__ float await_logit(const Job& job, int expert, uint32_t stamp) {
  uint64_t word;
  do {
    asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(word) : "l"(job.logits + expert) : "memory");
  } while (static_cast<uint32_t>(word >> 32) != stamp);
  return __uint_as_float(static_cast<uint32_t>(word));
}
inline constexpr int kStreamStride = 8 * kConsumerThreads, kStreamRuns = kMaxRoutedHidden / kStreamStride;
// The norm of the stream under `stamp`: the thread's values n = 8 threadIdx.x + i kStreamStride .. n + 7.
__device__ __forceinline__ void norm_stream(const Job& job, const __nv_bfloat16* weight, uint32_t stamp, float* reduce,
                                            float (&v)[kStreamRuns][8]) {
  const int first = 8 * static_cast<int>(threadIdx.x);
  uint4 own_weight[kStreamRuns] = {};
#pragma unroll
  for (int i = 0; i < kStreamRuns; ++i)
    if (const int n = first + i * kStreamStride; n < job.hidden)
      own_weight[i] = *reinterpret_cast<const uint4*>(weight + n);
  float squares = 0;
#pragma unroll
  for (int i = 0; i < kStreamRuns; ++i) {
#pragma unroll
    for (int j = 0; j < 8; ++j) v[i][j] = 0;
    if (first + i * kStreamStride < job.hidden) await_values(job.stream + first + i * kStreamStride, stamp, v[i]);
#pragma unroll
    for (int j = 0; j < 8; ++j) squares = fmaf(v[i][j], v[i][j], squares);
  }
  const float inv = 1.f / sqrtf(consumer_sum(squares, reduce) / static_cast<float>(job.hidden) + job.eps);
#pragma unroll
  for (int i = 0; i < kStreamRuns; ++i) {
    float w[8];
    unpack8(own_weight[i], w);
#pragma unroll
    for (int j = 0; j < 8; ++j) v[i][j] = rounded(v[i][j] * inv * (w[j] + job.weight_offset));
  }
}
// What the block's split of k needs of it.
__device__ __forceinline__ void put_stream(const Job& job, const LimbInput& input, const float (&v)[kStreamRuns][8]) {
  const int begin = input.first * kStageK, end = begin + input.needed * kStageK;
#pragma unroll
  for (int i = 0; i < kStreamRuns; ++i) {
    const int n = 8 * static_cast<int>(threadIdx.x) + i * kStreamStride;
    if (i * kStreamStride < job.hidden) input.put(n, v[i], n >= begin && n < end);
  }
}
// The input of q, k and v behind another layer.
__device__ __forceinline__ void load_stream(const Job& job, const LimbInput& input, const __nv_bfloat16* weight,
                                            uint32_t stamp, float* reduce) {
  float v[kStreamRuns][8];
  norm_stream(job, weight, stamp, reduce, v);
  put_stream(job, input, v);
  consumer_sync();
}

// Asks for the layer's table of experts; load_routed() waits for it.
__device__ __forceinline__ void fetch_table(const Job& job, const MixtureLayerRecord& layer, MixtureShared& mixture) {
  Weight* table = mixture.table(job);
  for (int i = threadIdx.x; i < job.experts * kExpertWeights; i += kConsumerThreads)
    cp_async16(table + i, layer.experts + i);
  cp_async_commit();
}

// The experts that the logits choose, best first, and their shares: as route() does it. A NaN comes behind all numbers,
// and makes all shares NaN.
__device__ __forceinline__ void choose_experts(const Job& job, uint32_t stamp, MixtureShared& mixture) {
  float* scores = mixture.scores();
  const int padded = (job.experts + 3) / 4 * 4, lanes = job.rank_lanes, lane = threadIdx.x % 32;
  for (int e = threadIdx.x; e < padded; e += kConsumerThreads)
    scores[e] = e < job.experts ? await_logit(job, e, stamp) : -INFINITY;
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
        return static_cast<int>(z > own) | (static_cast<int>(z == own) & static_cast<int>(of < e));  // without branches
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

// The norm of the stream behind o as the input of gate and up, and the choice of experts.
__device__ __forceinline__ void load_routed(const Job& job, const LimbInput& input, const MixtureLayerRecord& layer,
                                            uint32_t stamp, float* reduce, float* reduce_again,
                                            MixtureShared& mixture) {
  const int first = 8 * static_cast<int>(threadIdx.x);
  const auto row_of = [&](int e) { return layer.router + static_cast<int64_t>(e) * job.hidden; };
  uint4 row[kStreamRuns] = {};
#pragma unroll
  for (int i = 0; i < kStreamRuns; ++i)
    if (first + i * kStreamStride < job.hidden && blockIdx.x < job.experts)
      row[i] = *reinterpret_cast<const uint4*>(row_of(blockIdx.x) + first + i * kStreamStride);
  cp_async_wait<0>();
  float v[kStreamRuns][8];
  norm_stream(job, layer.middle_norm, stamp, reduce, v);
#pragma unroll 1
  for (int e = blockIdx.x; e < job.experts; e += gridDim.x) {
    float sum = 0;
#pragma unroll
    for (int i = 0; i < kStreamRuns; ++i) {
      if (first + i * kStreamStride >= job.hidden) continue;
      if (e != static_cast<int>(blockIdx.x))
        row[i] = *reinterpret_cast<const uint4*>(row_of(e) + first + i * kStreamStride);
      float r[8];
      unpack8(row[i], r);
#pragma unroll
      for (int j = 0; j < 8; ++j) sum = fmaf(v[i][j], r[j], sum);
    }
    sum = consumer_sum(sum, reduce_again);
    if (threadIdx.x == 0) put_logit(job, e, sum, stamp);
    if (e + static_cast<int>(gridDim.x) < job.experts) consumer_sync();  // the sums of warps have been read
  }
  put_stream(job, input, v);
  choose_experts(job, stamp, mixture);
}
#endif

}  // namespace fewbit::cuda::decode_step
