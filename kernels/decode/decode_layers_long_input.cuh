#pragma once
// The inputs of the products of packed weights where n tiles are shared (decode_layers_tiles.h), which is where layers
// are wide: a thread has several values of each, so all loads of the first four go out at once and those of the next
// four while these are worked on. One piece of code for every kind. Where a thread has one value or two, load_normed()
// and load_plain() are shorter: this one costs the 8B shape 0.5 us a layer.
#include "kernels/decode/decode_layers_input.cuh"

namespace fewbit::cuda::decode_step {

// inverse_rms() with up to four loads a thread in one trip.
__device__ __forceinline__ float inverse_rms_at_once(const Job& job, float* shared) {
  constexpr int kStride = 8 * kConsumerThreads, kTogether = 4;  // loads first: one trip to the L2 for all of them
  float squares = 0;
#pragma unroll 1
  for (int n = 8 * threadIdx.x; n < job.hidden; n += kTogether * kStride) {
    uint4 loaded[kTogether] = {};
#pragma unroll
    for (int i = 0; i < kTogether; ++i)
      if (n + i * kStride < job.hidden) loaded[i] = load8_cg(job.x + n + i * kStride);
#pragma unroll
    for (int i = 0; i < kTogether; ++i) {
      float v[8];
      unpack8(loaded[i], v);
#pragma unroll
      for (int j = 0; j < 8; ++j) squares = fmaf(v[j], v[j], squares);
    }
  }
  return 1.f / sqrtf(consumer_sum(squares, shared) / static_cast<float>(job.hidden) + job.eps);
}

// The input of a product of packed weights, which waits for the phase before: of q, k, v and of gate, up the norm of
// the residual stream under `weight`, of o what attention made, of down silu(gate) * up.
template <class Barrier>
__device__ __forceinline__ void load_values(const Job& job, int product, LimbInput& input, const __nv_bfloat16* weight,
                                            const Barrier& barrier, float* shared) {
  constexpr int kStride = 8 * kConsumerThreads, kTogether = 4;  // loads first: one trip to the L2 for all of them
  const bool normed = weight != nullptr, gates = product == kDown;
  const int begin = input.first * kStageK, end = begin + input.needed * kStageK, lane = threadIdx.x % 32;
  const __nv_bfloat16* from = normed ? job.x : gates ? job.gate_up : job.attended;
  const __nv_bfloat16* with = normed ? weight : job.gate_up + job.inner;
  // Loads of the next values while those at hand are worked on.
  uint4 values[kTogether] = {}, withs[kTogether] = {}, next[kTogether] = {}, next_withs[kTogether] = {};
  const auto load = [&](const __nv_bfloat16* of, int n, uint4(&to)[kTogether]) {
#pragma unroll
    for (int i = 0; i < kTogether; ++i)
      if (n + i * kStride < end) to[i] = load8_cg(of + n + i * kStride);
  };
  int n = begin + 8 * static_cast<int>(threadIdx.x);
  if (normed) load(with, n, withs);  // does not depend on the phase before
  barrier.wait();
  load(from, n, values);
  if (gates) load(with, n, withs);
  const float inv = normed ? inverse_rms_at_once(job, shared) : 1.f;
#pragma unroll 1
  while (n - 8 * lane < end) {  // whole warps
    load(from, n + kTogether * kStride, next);
    if (normed || gates) load(with, n + kTogether * kStride, next_withs);
#pragma unroll
    for (int i = 0; i < kTogether; ++i) {
      const int at = n + i * kStride;
      if (at - 8 * lane >= end) break;
      float v[8], w[8];
      unpack8(values[i], v);
      unpack8(withs[i], w);
      const bool active = at < end;
      if (normed) {
#pragma unroll
        for (int j = 0; j < 8; ++j) v[j] = active ? rounded(v[j] * inv * (w[j] + job.weight_offset)) : 0.f;
      } else if (gates) {
#pragma unroll
        for (int j = 0; j < 8; ++j) v[j] = gated(v[j], w[j]);
      }
      input.put(at, v, active);
      values[i] = next[i], withs[i] = next_withs[i];
    }
    n += kTogether * kStride;
  }
  consumer_sync();
}

}  // namespace fewbit::cuda::decode_step
