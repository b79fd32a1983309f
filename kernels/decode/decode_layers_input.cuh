#pragma once
// The inputs of the products of decode_layers_kernel.cuh. Every block computes what its split of k needs, the norm or
// the activation included, from what the phase before left in device memory.
#include "kernels/decode/decode_layers_job.cuh"
#include "kernels/device/grid_barrier.cuh"
#include "kernels/device/reduce.cuh"
#include "kernels/device/vec.cuh"
#include "kernels/products/marlin/limb_product.cuh"

namespace fewbit::cuda::decode_step {

__device__ __forceinline__ void unpack2(uint32_t pair, float& low, float& high) {
  low = __uint_as_float(pair << 16);
  high = __uint_as_float(pair & 0xffff0000u);
}
__device__ __forceinline__ void unpack8(uint4 from, float (&v)[8]) {
  unpack2(from.x, v[0], v[1]);
  unpack2(from.y, v[2], v[3]);
  unpack2(from.z, v[4], v[5]);
  unpack2(from.w, v[6], v[7]);
}
__device__ __forceinline__ uint4 load8_cg(const __nv_bfloat16* from) {
  return __ldcg(reinterpret_cast<const uint4*>(from));
}
__device__ __forceinline__ float rounded(float v) { return __bfloat162float(__float2bfloat16_rn(v)); }
// A barrier of the consumer warps.
__device__ __forceinline__ void consumer_sync() { asm volatile("bar.sync 1, %0;" ::"n"(kConsumerThreads) : "memory"); }
// The sum over the consumer threads. `shared`: kConsumerWarps values, free again after the next consumer_sync().
__device__ __forceinline__ float consumer_sum(float x, float* shared) {
  x = warp_sum(x);
  if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = x;
  consumer_sync();
  return warp_reduce(shared[threadIdx.x % kConsumerWarps], Sum{}, kConsumerWarps);
}

// The same in fewer steps, in another order. `shared` on a line of 16 bytes.
__device__ __forceinline__ float consumer_sum_at_once(float x, float* shared) {
  x = warp_sum(x);
  if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = x;
  consumer_sync();
  static_assert(kConsumerWarps == 8);
  const float4 a = *reinterpret_cast<const float4*>(shared), b = *reinterpret_cast<const float4*>(shared + 4);
  return ((a.x + a.y) + (a.z + a.w)) + ((b.x + b.y) + (b.z + b.w));
}

// A value of bf16 with the low half of a stamp, for those who wait for it (decode_layers_mixture.cuh).
__device__ __forceinline__ void put_value(uint32_t* to, float value, uint32_t stamp) {
  asm volatile("st.relaxed.gpu.global.u32 [%0], %1;" ::"l"(to), "r"(__float_as_uint(value) | (stamp & 0xffff))
               : "memory");
}
// silu(gate) * up, rounded where the ops round.
__device__ __forceinline__ float gated(float gate, float up) {
  return rounded(__fdividef(gate, 1.f + __expf(-gate)) * up);
}
// The waits below are those of whole warps, which look together: lanes that went on by themselves would each load
// again, and what follows would run for a few of them at a time. A lane that does not `need` its words gets anything.
//
// kN neighbours of such words, a multiple of four. Between two looks a warp sleeps: what others are about to write
// waits behind the looking.
template <int kN>
__device__ __forceinline__ void await_values(const uint32_t* from, uint32_t stamp, bool need, float (&v)[kN]) {
  constexpr int kNap = 20;  // ns
  uint32_t w[kN] = {};
  while (true) {
    uint32_t other = 0;
    if (need) {
#pragma unroll
      for (int i = 0; i < kN; i += 4)
        asm volatile("ld.relaxed.gpu.global.v4.u32 {%0, %1, %2, %3}, [%4];"
                     : "=r"(w[i]), "=r"(w[i + 1]), "=r"(w[i + 2]), "=r"(w[i + 3])
                     : "l"(from + i)
                     : "memory");
#pragma unroll
      for (int i = 0; i < kN; ++i) other |= w[i] ^ stamp;
    }
    if (!__any_sync(0xffffffffu, (other & 0xffff) != 0)) break;
    __nanosleep(kNap);
  }
#pragma unroll
  for (int i = 0; i < kN; ++i) v[i] = __uint_as_float(w[i] & 0xffff0000u);
}
// A float with a stamp above it.
__device__ __forceinline__ void put_float(uint64_t* to, float value, uint32_t stamp) {
  const uint64_t word = static_cast<uint64_t>(stamp) << 32 | __float_as_uint(value);
  asm volatile("st.relaxed.gpu.global.u64 [%0], %1;" ::"l"(to), "l"(word) : "memory");
}
__device__ __forceinline__ float await_float(const uint64_t* from, uint32_t stamp, bool need) {
  uint64_t word = 0;
  bool there;
  do {
    if (need) asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(word) : "l"(from) : "memory");
    there = !need || static_cast<uint32_t>(word >> 32) == stamp;
  } while (!__all_sync(0xffffffffu, there));
  return __uint_as_float(static_cast<uint32_t>(word));
}
// One of them, and two neighbours of another place, in one trip.
__device__ __forceinline__ float await_float_and_two(const uint64_t* from, const uint64_t* two, uint32_t stamp,
                                                     bool need, float2& of_two) {
  uint64_t one = 0, first = 0, second = 0;
  bool there;
  do {
    if (need) {
      asm volatile("ld.relaxed.gpu.global.u64 %0, [%1];" : "=l"(one) : "l"(from) : "memory");
      asm volatile("ld.relaxed.gpu.global.v2.u64 {%0, %1}, [%2];" : "=l"(first), "=l"(second) : "l"(two) : "memory");
    }
    there = !need || (static_cast<uint32_t>(one >> 32) == stamp && static_cast<uint32_t>(first >> 32) == stamp &&
                      static_cast<uint32_t>(second >> 32) == stamp);
  } while (!__all_sync(0xffffffffu, there));
  of_two = {__uint_as_float(static_cast<uint32_t>(first)), __uint_as_float(static_cast<uint32_t>(second))};
  return __uint_as_float(static_cast<uint32_t>(one));
}

// Shared memory for the input of a product.
struct InputShared {
  uint8_t *x, *groups;  // [k tiles] of a kind's input_bytes and group_bytes
  float* max_abs;       // [kConsumerWarps + kKSplits]: largest magnitudes of warps and of the cluster's blocks
  uint64_t* max_barrier;
};

// The input of a product of packed weights: the block's k tiles as base 256 limbs of integers.
struct LimbInput {
  uint8_t* x;         // [needed, kGroupLimbBytes]
  LimbGroup* groups;  // [needed]
  int first, needed;  // k tiles

  // Stores the values n .. n + 7 (n % 8 == 0), which are bf16 already. Sixteen neighbouring lanes hold a k tile, and
  // whole warps call; lanes that are not `active` have no values. `share` multiplies what the tile's weights make.
  __device__ __forceinline__ void put(int n, const float (&v)[8], bool active, float share = 1.f) const {
    constexpr int kLanes = kStageK / 8;
    float largest = 0;
#pragma unroll
    for (int i = 0; i < 8; ++i) largest = fmaxf(largest, fabsf(v[i]));
    largest = warp_reduce(largest, Max{}, kLanes);
    const int up = limb_power(largest);
    const float scale = power_of_two(up);
    int32_t own[8];
    int sum = 0;
    bool finite = true;
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      own[i] = __float2int_rn(v[i] * scale);
      sum += own[i];
      finite = finite && isfinite(v[i]);
    }
    sum = warp_reduce(sum, Sum{}, kLanes);
    finite = __all_sync(0xffffffffu, finite);
    // This lane holds the lower or upper half of a Marlin tile's k, its neighbour the other half: each of the two makes
    // the words of half of the pairs.
    const bool upper = n % 16 >= 8;
    int32_t low[4], high[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int32_t other = __shfl_xor_sync(0xffffffffu, upper ? own[i] : own[i + 4], 1);
      low[i] = upper ? other : own[i];
      high[i] = upper ? own[i + 4] : other;
    }
    if (!active) return;
    const int k_tile = n / kStageK - first, marlin_tile = n % kStageK / marlin::kTileK;
    uint8_t* to = x + k_tile * kGroupLimbBytes + limb_word_at(marlin_tile, 0, upper ? 2 : 0);
#pragma unroll
    for (int t = 0; t < 2; ++t) {
      uint32_t words[kLimbs];
      limb_words(words, {low[2 * t], low[2 * t + 1]}, {high[2 * t], high[2 * t + 1]});
#pragma unroll
      for (int d = 0; d < kLimbs; ++d) *reinterpret_cast<uint32_t*>(to + limb_word_at(0, d, t)) = words[d];
    }
    if (n % kStageK != 0) return;
    groups[k_tile].set(sum, up, finite);
    groups[k_tile].scale *= share;
  }
};

// The barrier of the grid between two phases: every block arrives once a phase at a counter that runs through the
// launch. All blocks must be resident together; the host launches no more than resident_blocks().
template <bool kWhole>
struct GridBarrier {
  uint32_t* counters;  // arrivals, departures
  uint32_t target = 0;

  __device__ __forceinline__ void arrive() {
    consumer_sync();
    if (threadIdx.x == 0) count_arrival(counters);
    target += gridDim.x;
  }
  // Waits for all arrivals so far; before the first there is nothing to wait for.
  __device__ __forceinline__ void wait() const {
    if (!kWhole && target == 0) return;  // saves a trip to the counter in every layer
    if (threadIdx.x == 0) await_count(counters, target);
    consumer_sync();
  }
  // The last block to leave zeroes the counters for the next launch.
  // True in one thread of it.
  __device__ __forceinline__ bool leave() const {  // after the last wait
    if (threadIdx.x > 0 || atomicAdd(counters + 1, 1u) < gridDim.x - 1) return false;
    counters[0] = counters[1] = 0;
    return true;
  }
  __device__ __forceinline__ bool leave_unwaited() const {  // after the last arrival
    if (threadIdx.x > 0 || !arrives_last(counters + 1, gridDim.x)) return false;
    counters[0] = 0;
    return true;
  }
};

// The mean square of the residual stream makes 1 / rms; every block reads all of the stream for it.
__device__ __forceinline__ float inverse_rms(const Job& job, float* shared) {
  constexpr int kStride = 8 * kConsumerThreads;
  float squares = 0;
#pragma unroll 1
  for (int n = 8 * threadIdx.x; n < job.hidden; n += 2 * kStride) {
    float v[2][8] = {};
    uint4 loaded[2] = {};
#pragma unroll
    for (int i = 0; i < 2; ++i)
      if (n + i * kStride < job.hidden) loaded[i] = load8_cg(job.x + n + i * kStride);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      unpack8(loaded[i], v[i]);
#pragma unroll
      for (int j = 0; j < 8; ++j) squares = fmaf(v[i][j], v[i][j], squares);
    }
  }
  return 1.f / sqrtf(consumer_sum(squares, shared) / static_cast<float>(job.hidden) + job.eps);
}

// The norm of the residual stream as the input of a product. Waits for the phase before once the norm's weight is at
// hand, and keeps what the block's split of k needs.
template <class Barrier>
__device__ __forceinline__ void load_normed(const Job& job, const LimbInput& input, const __nv_bfloat16* weight,
                                            const Barrier& barrier, float* shared) {
  constexpr int kStride = 8 * kConsumerThreads;
  const int first_own = (input.first * kStageK) + 8 * threadIdx.x, end_own = (input.first + input.needed) * kStageK;
  uint4 own_weight{};
  if (first_own < end_own) own_weight = *reinterpret_cast<const uint4*>(weight + first_own);
  barrier.wait();
  uint4 own{};
  if (first_own < end_own) own = load8_cg(job.x + first_own);
  const float inv = inverse_rms(job, shared);
#pragma unroll 1
  for (int n = first_own; n - 8 * static_cast<int>(threadIdx.x) < end_own; n += kStride) {  // whole warps
    float v[8], w[8];
    const bool active = n < end_own;
    if (n != first_own && active) {
      own = load8_cg(job.x + n);
      own_weight = *reinterpret_cast<const uint4*>(weight + n);
    }
    unpack8(own, v);
    unpack8(own_weight, w);
#pragma unroll
    for (int i = 0; i < 8; ++i) v[i] = active ? rounded(v[i] * inv * (w[i] + job.weight_offset)) : 0.f;
    input.put(n, v, active);
  }
  consumer_sync();
}

// The output of attention, or silu(gate) * up, as the input of a product.
template <class Barrier>
__device__ __forceinline__ void load_plain(const Job& job, int product, const LimbInput& input,
                                           const Barrier& barrier) {
  barrier.wait();
  const __nv_bfloat16* from = product == kOut ? job.attended : job.gate_up;
  const int begin = input.first * kStageK, end = begin + input.needed * kStageK;
  constexpr int kStride = 8 * kConsumerThreads, kTogether = 4;  // loads first: one trip to the L2 for all of them
#pragma unroll 1
  for (int n = begin + 8 * static_cast<int>(threadIdx.x); n - 8 * static_cast<int>(threadIdx.x) < end;
       n += kTogether * kStride) {
    uint4 loaded[kTogether] = {}, ups[kTogether] = {};
#pragma unroll
    for (int i = 0; i < kTogether; ++i)
      if (n + i * kStride < end) {
        const int at = n + i * kStride;
        loaded[i] = load8_cg(from + at);
        if (product == kDown) ups[i] = load8_cg(from + job.inner + at);
      }
#pragma unroll
    for (int i = 0; i < kTogether; ++i) {
      if (n - 8 * static_cast<int>(threadIdx.x) + i * kStride >= end) break;  // whole warps
      float v[8], up[8];
      unpack8(loaded[i], v);
      if (product == kDown) {
        unpack8(ups[i], up);
#pragma unroll
        for (int j = 0; j < 8; ++j) v[j] = gated(v[j], up[j]);
      }
      const bool active = n + i * kStride < end;
      input.put(n + i * kStride, v, active);
    }
  }
  consumer_sync();
}

}  // namespace fewbit::cuda::decode_step
