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

// Adds 1 where v >= least > 0: the carry of v - least. Of a comparison the compiler makes a longer chain.
__device__ __forceinline__ void count_at_least(uint32_t& count, uint32_t v, uint32_t least) {
  asm("{\n.reg .u32 rest;\nadd.cc.u32 rest, %1, %2;\naddc.u32 %0, %0, 0;\n}\n" : "+r"(count) : "r"(v), "r"(0u - least));
}

// Counts the keys of every second four from `i` to `end` that are at least `least`; returns the next `i`.
__device__ __forceinline__ int count_before(const uint32_t* keys, int i, int end, uint32_t least,
                                            uint32_t (&count)[4]) {
#pragma unroll 4
  for (; i < end; i += 8) {
    const uint4 four = *reinterpret_cast<const uint4*>(keys + i);
    count_at_least(count[0], four.x, least), count_at_least(count[1], four.y, least);
    count_at_least(count[2], four.z, least), count_at_least(count[3], four.w, least);
  }
  return i;
}

// The experts that the logits choose, best first, and their shares: as route() does it. A NaN comes behind all numbers,
// and makes all shares NaN. The work of all consumer warps: two lanes count how many experts come before one, by
// integers in the order of the logits.
__device__ __forceinline__ void choose_experts(const Job& job, uint32_t stamp, MixtureShared& mixture) {
  constexpr int kLanes = 2, kWarpExperts = 32 / kLanes;
  const int padded = MixtureShared::padded(job), lane = threadIdx.x % 32;
  float* scores = mixture.scores();
  uint32_t* keys = mixture.keys(job);
#pragma unroll 1
  for (int e = threadIdx.x; e - lane < padded; e += kConsumerThreads) {  // whole warps
    const float logit = await_float(job.logits + e, stamp, e < job.experts);
    uint32_t key = 0;  // behind all others
    if (e < job.experts) {
      const uint32_t bits = __float_as_uint(fmaxf(logit, -INFINITY) + 0.f);  // of a NaN: -inf; one zero
      key = bits ^ (bits >> 31 ? 0xffffffffu : 0x80000000u);
      scores[e] = logit;
    }
    if (e < padded) keys[e] = key;
  }
  consumer_sync();
#pragma unroll 1
  for (int e = static_cast<int>(threadIdx.x) / kLanes; e - lane / kLanes < padded; e += kConsumerThreads / kLanes) {
    // Equal ones come in the order of the experts: those before the warp's 16 count from `key` on, those behind them
    // above it.
    const uint32_t key = e < job.experts ? keys[e] : 0xfffffffeu;
    const int own = e / 4 * 4, warps = e - lane / kLanes;
    uint32_t before[4] = {};
    int i = 4 * (lane % kLanes);
    i = count_before(keys, i, warps, key, before);
#pragma unroll
    for (int j = 0; j < kWarpExperts; j += 4 * kLanes, i += 4 * kLanes)
      count_before(keys, i, min(i + 1, padded), key + (i >= own ? 1 : 0), before);
    count_before(keys, i, padded, key + 1, before);
    uint32_t rank = before[0] + before[1] + before[2] + before[3];
    rank += __shfl_xor_sync(0xffffffffu, rank, 1);
    if (lane % kLanes > 0 || e >= job.experts || rank >= static_cast<uint32_t>(job.top_k)) continue;
    for (int i = own; i < e; ++i) rank += keys[i] == key;
    if (rank >= static_cast<uint32_t>(job.top_k)) continue;
    mixture.winners[rank] = e;
    const Weight* of = mixture.table(job) + e * kExpertWeights;
#pragma unroll
    for (int w = 0; w < kExpertWeights; ++w) mixture.chosen[rank * kExpertWeights + w] = of[w];
  }
  __syncwarp();
  if (lane < kArrivingLanes) barrier_arrive(&mixture.known);
  consumer_sync();
  if (threadIdx.x >= 32) return;
  const int own = lane < job.top_k ? mixture.winners[lane] : 0;
  const float first = fmaxf(scores[mixture.winners[0]], -INFINITY);
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
    for (int n = own; n - own < end; n += kStride) {
      await_values(words + n, wanted, n < end, v);
#pragma unroll
      for (int j = 0; j < 8; ++j) squares = n < end ? fmaf(v[j], v[j], squares) : squares;
    }
    inv = rsqrtf(fmaf(consumer_sum_at_once(squares, reduce), job.per_hidden, job.eps));
  }
  bool again = false;
#pragma unroll 1
  while (reads && (!again || e < job.experts)) {
    float sum = 0;
#pragma unroll 1
    for (int n = begin + own; n - own < end; n += kStride) {  // whole warps
      const bool there = n < end, kept = !again && normed && end <= kStride;
      if (!kept) {
        await_values(words + n, wanted, there, v);
        if (normed && there) w = *reinterpret_cast<const uint4*>(weight + n);
        if (normed && there && e < job.experts)
          row = *reinterpret_cast<const uint4*>(layer.router + static_cast<int64_t>(e) * job.hidden + n);
      }
#pragma unroll
      for (int j = 0; j < 8; ++j) v[j] = there ? v[j] : 0.f;
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
            sum = consumer_sum_at_once(sum, reduce_again);
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
  if (routes) cp_async_wait<0>();  // the table of experts; choose_experts() has a barrier behind it
  if (chooses) choose_experts(job, stamp, mixture);
  if (works != chooses) consumer_sync();  // the input, or the shares for a block that has down alone
}
#endif

}  // namespace fewbit::cuda::decode_step
