#pragma once
// The inputs and the routing of a mixture in decode_layers_kernel.cuh: a block has the logits of one expert or a few,
// and every block that needs it makes the same choice of them for itself. Only then can weights of experts be asked
// for; those before them lie in the rings by then.
#include "kernels/decode/decode_layers_product.cuh"

//
// Of a mixture q, k, v, what attention makes, the stream behind o and down, the logits and what gates and ups make are
// words with a stamp, which readers look at until it is the one that they want: no arrival, no counter and no second
// trip for the values. A stamp counts on through all launches of a stack, so that a word never holds the wanted one
// from before. What follows a product needs all of it, so a block that has work to do there is never overtaken; one
// without work does not read.
namespace fewbit::cuda::decode_step {

#ifdef FEWBIT_SM90A
// The stamp of the stream behind o of the launch's layer `layer`; behind its down the next one. Its logits have it too.
__device__ __forceinline__ uint32_t stamp_of(const Job& job, uint32_t launch, int layer) {
  return launch * static_cast<uint32_t>(job.stamp_stride) + 2 * static_cast<uint32_t>(layer) + 2;
}
// Asks for the layer's table of experts; load_words() waits for it.
__device__ __forceinline__ void fetch_table(const Job& job, const MixtureLayerRecord& layer, MixtureShared& mixture) {
  Weight* table = mixture.table(job);
  for (int i = threadIdx.x; i < job.experts * kExpertWeights; i += kConsumerThreads)
    cp_async16(table + i, layer.experts + i);
  cp_async_commit();
}

// The experts that the logits choose, best first, and their shares: as route() does it. A NaN comes behind all numbers,
// and makes all shares NaN. The work of one warp: a lane has every 32nd expert, as an integer in the order of its
// logit.
template <int kEach>
__device__ __forceinline__ void choose_experts(const Job& job, uint32_t stamp, MixtureShared& mixture) {
  constexpr int kStep = 4;
  const int lane = threadIdx.x % 32;
  float* scores = mixture.scores();
  uint32_t keys[kEach];
  int own = 0;  // the expert of slot `lane`
#pragma unroll
  for (int i = 0; i < kEach; i += kStep) {
    if (32 * i >= job.experts) break;
    float logits[kStep] = {};
    await_floats(job.logits + 32 * i + lane, 32, (job.experts - 32 * i - lane + 31) / 32, stamp, logits);
#pragma unroll
    for (int j = 0; j < kStep; ++j) {
      const int e = 32 * (i + j) + lane;
      const uint32_t bits = __float_as_uint(fmaxf(logits[j], -INFINITY) + 0.f);  // of a NaN: -inf; one zero
      keys[i + j] = e < job.experts ? bits ^ (bits >> 31 ? 0xffffffffu : 0x80000000u) : 0;
      if (e < job.experts) scores[e] = logits[j];
    }
  }
  __syncwarp();
#pragma unroll 1
  for (int slot = 0; slot < job.top_k; ++slot) {
    uint32_t best = 0;
    int at = 0;
#pragma unroll
    for (int i = 0; i < kEach; i += kStep) {
      if (32 * i >= job.experts) break;
#pragma unroll
      for (int j = 0; j < kStep; ++j)
        if (keys[i + j] > best) best = keys[i + j], at = i + j;
    }
    const uint32_t most = __reduce_max_sync(0xffffffffu, best);
    const uint32_t e = __reduce_min_sync(0xffffffffu, best == most ? 32u * at + lane : 0xffffffffu);
    if (lane == slot) own = static_cast<int>(e);
#pragma unroll
    for (int i = 0; i < kEach; i += kStep) {
      if (32 * i >= job.experts) break;
#pragma unroll
      for (int j = 0; j < kStep; ++j)
        if (e == static_cast<uint32_t>(32 * (i + j) + lane)) keys[i + j] = 0;
    }
  }
  const Weight* table = mixture.table(job);
  for (int first = 0; first < kExpertWeights * job.top_k; first += 32) {  // whole warps
    const int i = first + lane, id = __shfl_sync(0xffffffffu, own, min(i / kExpertWeights, 31));
    if (i < kExpertWeights * job.top_k) mixture.chosen[i] = table[id * kExpertWeights + i % kExpertWeights];
  }
  __syncwarp();
  if (lane < kArrivingLanes) barrier_arrive(&mixture.known);
  const float first = fmaxf(scores[__shfl_sync(0xffffffffu, own, 0)], -INFINITY);
  float all = 0;
  for (int e = lane; e < job.experts; e += 32) all += expf(scores[e] - first);
  all = warp_sum(all);
  const float share = lane < job.top_k ? expf(scores[own] - first) / all : 0.f;
  const float chosen = warp_sum(share) + 1e-20f;
  if (lane < job.top_k)
    mixture.shares[lane] = isnan(all) ? all : share / (job.renormalise ? chosen : 1.f) * job.route_scale;
}

// The input of a product from words with a stamp, if the block has work there: q, k and v take the norm of the stream
// behind the layer before, o what attention made, down what gates and ups made, under the experts' shares. Gate and up
// take the norm of the stream behind o, of which the block also makes the logits of its experts; then it chooses. One
// piece of code for all of them, in loops, since this kernel has no registers left and much code that runs once a
// layer.
__device__ __forceinline__ void load_words(const Job& job, int product, const WorkRange* ranges, const LimbInput& input,
                                           const MixtureLayerRecord& layer, uint32_t stamp, float* reduce,
                                           float* reduce_again, MixtureShared& mixture) {
  constexpr int kStride = 8 * kConsumerThreads;
  const int own = 8 * static_cast<int>(threadIdx.x);
  const bool routes = product == kGateUp, normed = routes || product == kQkv;
  const bool works = ranges[product].n_count > 0, chooses = routes && (works || ranges[kDown].n_count > 0);
  int e = routes ? static_cast<int>(blockIdx.x) : job.experts;
  const uint32_t* words = product == kOut ? job.attended_words : product == kDown ? job.activated_words : job.stream;
  const uint32_t wanted = product == kQkv ? stamp - 1 : stamp;
  const __nv_bfloat16* weight = product == kQkv ? layer.input_norm : layer.middle_norm;
  const int first = input.first * kStageK, behind = first + input.needed * kStageK;
  const int begin = normed ? 0 : first, end = normed ? job.hidden : behind;
  const bool reads = works || e < job.experts;  // else it might be overtaken
  uint4 w{}, row{};
  float v[8] = {}, inv = 1;
  if (normed && reads) {
    if (own < end) w = *reinterpret_cast<const uint4*>(weight + own);
    if (own < end && e < job.experts)
      row = *reinterpret_cast<const uint4*>(layer.router + static_cast<int64_t>(e) * job.hidden + own);
    float squares = 0;
#pragma unroll 1
    for (int n = own; n < end; n += kStride) {
      await_values(words + n, wanted, v);
#pragma unroll
      for (int j = 0; j < 8; ++j) squares = fmaf(v[j], v[j], squares);
    }
    inv = 1.f / sqrtf(consumer_sum(squares, reduce) / static_cast<float>(job.hidden) + job.eps);
  }
  bool again = false;
#pragma unroll 1
  while (reads && (!again || e < job.experts)) {
    float sum = 0;
#pragma unroll 1
    for (int n = begin + own; n - own < end; n += kStride) {  // whole warps
      const bool there = n < end, kept = !again && normed && end <= kStride;
      if (!there) {
#pragma unroll
        for (int j = 0; j < 8; ++j) v[j] = 0;
      } else if (!kept) {
        await_values(words + n, wanted, v);
        if (normed) w = *reinterpret_cast<const uint4*>(weight + n);
        if (normed && e < job.experts)
          row = *reinterpret_cast<const uint4*>(layer.router + static_cast<int64_t>(e) * job.hidden + n);
      }
      float share = 1;
      if (normed) {
        float of[8];
        unpack8(w, of);
#pragma unroll
        for (int j = 0; j < 8; ++j) v[j] = there ? rounded(v[j] * inv * (of[j] + job.weight_offset)) : 0.f;
        if (e < job.experts) {
          unpack8(row, of);
#pragma unroll
          for (int j = 0; j < 8; ++j) sum = fmaf(v[j], of[j], sum);
          if (n - own + kStride >= end) {
            sum = consumer_sum(sum, reduce_again);
            if (threadIdx.x == 0) put_float(job.logits + e, sum, stamp);
          }
        }
      } else if (product == kDown && there) {
        share = mixture.shares[static_cast<int>((static_cast<float>(n) + 0.5f) * job.slots_of_value)];
      }
      if (works && !again) input.put(n, v, there && n >= first && n < behind, share);
    }
    again = true;
    e += gridDim.x;
    if (e < job.experts) consumer_sync();  // the sums of warps have been read
  }
  if (routes) cp_async_wait<0>();  // the table of experts
  if (works || chooses) consumer_sync();
  if (!chooses || threadIdx.x >= 32) return;
  if (job.experts <= 128)
    choose_experts<4>(job, stamp, mixture);
  else
    choose_experts<kMaxExperts / 32>(job, stamp, mixture);
}
#endif

}  // namespace fewbit::cuda::decode_step
