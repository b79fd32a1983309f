#pragma once
// What stands before and behind attention over latents by wgmma (latent_wide.cuh): queries times the key weights, and
// the splits merged and multiplied by the value weights. Both read their weights once, and begin to while the kernel
// before them still runs.
#include "kernels/attention/latent_attention.h"
#include "kernels/attention/latent_wide.cuh"
#include "kernels/device/reduce.cuh"
#include "kernels/device/vec.cuh"
#include "kernels/exec/exec_cuda.h"

namespace fewbit::cuda::latent_wide {

// Asks for the first tiles of every split, with which the kernel behind this one begins. Where the kernel before this
// one still writes the positions, tiles may be asked for that nobody needs.
__device__ __forceinline__ void prefetch_keys(const Job& job, int64_t tokens) {
#ifdef FEWBIT_SM90A
  for (int64_t i = blockIdx.x; i < tokens * job.splits * kStages; i += gridDim.x) {
    const int64_t token = i / (job.splits * kStages), capacity = job.capacity;
    const int keys = static_cast<int>(min(max(__ldcg(job.positions + token), 0) + int64_t{1}, capacity));
    const Tiles own(keys, i / kStages % job.splits, job.splits);
    const int tile = own.first + i % kStages;
    if (tile < own.last) prefetch_tile(job, (job.before + token) / job.len, tile * kKeys);
  }
#endif
}

// absorbed[t, h, r] = sum_i q_nope[t, h, i] W[h (nope + value) + i, r], by mma: sixteen tokens, and 64 r a warp, whose
// weights for 128 i stay in registers for all tokens. Grid: heads. nope is even.
inline constexpr int kAbsorbThreads = 32 * kRank / 64, kAbsorbTokens = 16, kAbsorbSteps = 8;
struct AbsorbWarp {
  const __nv_bfloat16* rows;  // the lane's eight columns of the head's key weights
  int nope, row;              // row: the lane's first of a step of 16; the others are 1, 8 and 9 further
  uint4 w[kAbsorbSteps][4];

  __device__ __forceinline__ void load(int first) {
#pragma unroll
    for (int i = 0; i < kAbsorbSteps * 4; ++i) {
      const int own = first + i / 4 * 16 + row + i % 2 + i % 4 / 2 * 8;
      w[i / 4][i % 4] =
          own < nope ? __ldg(reinterpret_cast<const uint4*>(rows + static_cast<int64_t>(own) * kRank)) : uint4{};
    }
  }
  // sum[j] += the queries of a step times column j of the lanes' eight.
  __device__ __forceinline__ void multiply(int step, const uint32_t (&q)[4], float (&sum)[8][4]) const {
    const uint4(&x)[4] = w[step];
    const uint32_t two[4][4] = {{x[0].x, x[0].y, x[0].z, x[0].w},
                                {x[1].x, x[1].y, x[1].z, x[1].w},
                                {x[2].x, x[2].y, x[2].z, x[2].w},
                                {x[3].x, x[3].y, x[3].z, x[3].w}};
#pragma unroll
    for (int j = 0; j < 8; ++j) {
      const unsigned halves = j % 2 == 0 ? 0x5410 : 0x7632;
      mma_bf16(sum[j], q, __byte_perm(two[0][j / 2], two[1][j / 2], halves),
               __byte_perm(two[2][j / 2], two[3][j / 2], halves));
    }
  }
};
__global__ void __launch_bounds__(kAbsorbThreads)
    absorb_kernel(const __nv_bfloat16* __restrict__ q_nope, const __grid_constant__ Job job, int64_t tokens,
                  __nv_bfloat16* __restrict__ absorbed) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, head = blockIdx.x, nope = job.nope;
  AbsorbWarp own{.nope = nope, .row = lane % 4 * 2};
  own.rows = job.w + static_cast<int64_t>(head) * (nope + job.value) * kRank + warp * 64 + lane / 4 * 8;
  own.load(0);
  if (threadIdx.x == 0) prefetch_keys(job, tokens);
  await_predecessor();
  allow_successor();
  for (int64_t t0 = 0; t0 < tokens; t0 += kAbsorbTokens) {
    float sum[8][4] = {};
    for (int first = 0; first < nope; first += 16 * kAbsorbSteps) {
      if (nope > 16 * kAbsorbSteps) own.load(first);
      uint32_t q[kAbsorbSteps][4];
#pragma unroll
      for (int i = 0; i < kAbsorbSteps * 4; ++i) {
        const int64_t token = t0 + lane / 4 + i % 2 * 8;
        const int at = first + i / 4 * 16 + own.row + i % 4 / 2 * 8;
        q[i / 4][i % 4] = token < tokens && at < nope
                              ? *reinterpret_cast<const uint32_t*>(q_nope + (token * job.heads + head) * nope + at)
                              : 0;
      }
#pragma unroll
      for (int step = 0; step < kAbsorbSteps; ++step) own.multiply(step, q[step], sum);
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int64_t token = t0 + lane / 4 + i / 2 * 8;
      if (token >= tokens) continue;
      uint4 v;
      v.x = pack_bf16(sum[0][i], sum[1][i]), v.y = pack_bf16(sum[2][i], sum[3][i]);
      v.z = pack_bf16(sum[4][i], sum[5][i]), v.w = pack_bf16(sum[6][i], sum[7][i]);
      __nv_bfloat16* to = absorbed + (token * job.heads + head) * kRank + warp * 64 + (lane % 4 * 2 + i % 2) * 8;
      *reinterpret_cast<uint4*>(to) = v;
    }
  }
}

// Merges the splits of a head and multiplies by its value weights, 16 rows of which two warps (a pair) have, half of
// the latent each, for eight tokens at a time, by mma: a mean is the sum of two bf16 numbers there. Grid: heads.
inline constexpr int kValueThreads = 512, kPairs = kValueThreads / 64;
inline constexpr int kTogether = 32;           // tokens that are merged before they are multiplied
inline constexpr int kMeanStride = kRank + 4;  // words: 16 bytes of eight tokens fall into different banks
struct ValueWarp {
  const __nv_bfloat16* rows;  // the lane's columns of the head's value weights
  uint4* kept;                // [16, kValueThreads] in shared memory, of which a thread has its column
  int value, row;

  // Asks for rows `tile` * 16 + row and 8 further. They wait in shared memory, for registers are full while means are
  // merged.
  __device__ __forceinline__ void ask(int tile) const {
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      const int own = tile * 16 + row + i % 2 * 8;
      const bool there = own < value;
      cp_async16(kept + i * kValueThreads + threadIdx.x, rows + (there ? own * kRank + i / 2 * 32 : 0), there);
    }
    cp_async_commit();
  }
  __device__ __forceinline__ void take(uint4 (&w)[16]) const {
    cp_async_wait<0>();
#pragma unroll
    for (int i = 0; i < 16; ++i) w[i] = kept[i * kValueThreads + threadIdx.x];
  }
};
// c = the rows of `w` times the means; mean: the lane's columns of the token that it brings, as pack_mean() makes them.
__device__ __forceinline__ void multiply_means(const uint4 (&w)[16], const uint32_t* mean, float (&c)[4]) {
  float part[4][4] = {};
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const uint4 low = *reinterpret_cast<const uint4*>(mean + 32 * i),
                high = *reinterpret_cast<const uint4*>(mean + 32 * i + 4);
    const uint4 a = w[2 * i], b = w[2 * i + 1];
    // The 32 columns in another order than their own, the same one in both operands.
    mma_bf16(part[0], {a.x, b.x, a.y, b.y}, low.y, low.w);
    mma_bf16(part[1], {a.z, b.z, a.w, b.w}, high.y, high.w);
    mma_bf16(part[2], {a.x, b.x, a.y, b.y}, low.x, low.z);
    mma_bf16(part[3], {a.z, b.z, a.w, b.w}, high.x, high.z);
  }
#pragma unroll
  for (int i = 0; i < 4; ++i) c[i] = (part[0][i] + part[1][i]) + (part[2][i] + part[3][i]);
}

// Two values as bf16, and what is left of them.
__device__ __forceinline__ uint2 pack_mean(float low, float high) {
  const uint32_t first = pack_bf16(low, high);
  return {first, pack_bf16(low - __uint_as_float(first << 16), high - __uint_as_float(first & 0xffff0000u))};
}

// What the mean of each split counts for in that of `some` tokens of a head from `token` on: shares [some, splits].
// Sixteen lanes or a warp a token.
__device__ __forceinline__ void share_splits(const Job& job, int64_t token, int some, int head, float* shares) {
  constexpr int kMost = kMostSplits / 32;
  const int width = job.splits <= 16 ? 16 : 32, lane = threadIdx.x % width, teams = kValueThreads / width;
  for (int first = 0; first < some; first += teams) {
    const int own = first + static_cast<int>(threadIdx.x) / width;
    const int64_t at = ((token + own) * job.heads + head) * job.splits;
    float share[kMost], weight[kMost], top = -INFINITY, all = 0;
#pragma unroll
    for (int i = 0; i < kMost; ++i) {
      if (32 * i >= job.splits) break;
      const int s = 32 * i + lane;
      const bool there = own < some && s < job.splits;
      share[i] = there ? __ldcg(job.top + at + s) : -INFINITY;
      const float2 both = there ? __ldcg(job.weight + at + s) : float2{};
      weight[i] = both.x + both.y;
    }
#pragma unroll
    for (int i = 0; i < kMost; ++i) {
      if (32 * i >= job.splits) break;
      top = fmaxf(top, share[i]);
    }
    top = warp_reduce(top, Max{}, width);
#pragma unroll
    for (int i = 0; i < kMost; ++i) {
      if (32 * i >= job.splits) break;
      share[i] = expf(share[i] - top), all = fmaf(share[i], weight[i], all);
    }
    const float inverse = 1 / warp_reduce(all, Sum{}, width);
#pragma unroll
    for (int i = 0; i < kMost; ++i) {
      if (32 * i >= job.splits) break;
      if (const int s = 32 * i + lane; own < some && s < job.splits) shares[own * job.splits + s] = share[i] * inverse;
    }
  }
}

// A warp's part of merging: of every token `stride` further from `token` on, half of the latent, of every split
// `groups` further from `group` on. All that is to be read is asked for before the shares are known; where a split has
// no keys, that is nothing, and its share 0.
struct Merger {
  static constexpr int kAhead = 9;
  const Job& job;
  int64_t first;  // the tokens' first
  int head, some, token, stride, group, groups, half;
  uint4 ahead[kAhead];

  struct Place {
    int token, split;
  };
  __device__ __forceinline__ void step(Place& p) const {
    p.split += groups;
    if (p.split >= job.splits) p.split = group, p.token += stride;
  }
  // Asks for the next kAhead of the tokens and splits.
  __device__ __forceinline__ void ask(Place p) {
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      if (p.token >= some) break;
      const int64_t at = ((first + p.token) * job.heads + head) * job.splits + p.split;
      ahead[i] = __ldcg(job.mean + (at * 2 + half) * (kRank / 16) + threadIdx.x % 32);
      step(p);
    }
  }
  __device__ __forceinline__ Place begin() const { return {group < job.splits ? token : some, group}; }
  // Calls put(token, mean) with the lane's eight values of each token that has splits of the group.
  template <class F>
  __device__ __forceinline__ void merge(const float* shares, F&& put) {
    float mean[8] = {};
    for (Place p = begin(); p.token < some;) {
#pragma unroll
      for (int i = 0; i < kAhead; ++i) {
        if (p.token >= some) break;
        const float own = shares[p.token * job.splits + p.split];
        const uint32_t two[4] = {ahead[i].x, ahead[i].y, ahead[i].z, ahead[i].w};
        if (own > 0)
#pragma unroll
          for (int k = 0; k < 4; ++k) {
            mean[2 * k] = fmaf(own, __uint_as_float(two[k] << 16), mean[2 * k]);
            mean[2 * k + 1] = fmaf(own, __uint_as_float(two[k] & 0xffff0000u), mean[2 * k + 1]);
          }
        if (p.split + groups >= job.splits) {
          put(p.token, mean);
#pragma unroll
          for (float& x : mean) x = 0;
        }
        step(p);
      }
      ask(p);
    }
  }
};

// Leaves the means of `some` tokens from `first` on, in pairs as pack_mean() makes them; of token t at t * the result.
__device__ __forceinline__ int merge_means(const Job& job, int64_t first, int some, uint32_t* means, float* shares) {
  const int lane = threadIdx.x % 32, pair = threadIdx.x / 64, half = threadIdx.x / 32 % 2, head = blockIdx.x;
  const int groups = some == 1 ? 8 : some == 2 ? 4 : some <= 4 ? 2 : 1;  // of a token's splits
  Merger m{.job = job,
           .first = first,
           .head = head,
           .some = some,
           .token = pair / groups,
           .stride = kPairs / groups,
           .group = pair % groups,
           .groups = groups,
           .half = half};
  m.ask(m.begin());
  share_splits(job, first, some, head, shares);
  __syncthreads();
  const int column = half * (kRank / 2) + lane / 4 * 32 + lane % 4 * 2;
  const auto put = [&](int token, const float(&mean)[8]) {
    uint32_t* to = means + (token * groups + m.group) * kMeanStride + column;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const float low = mean[2 * j], high = mean[2 * j + 1];
      *reinterpret_cast<uint2*>(to + 8 * j) =
          groups == 1 ? pack_mean(low, high) : uint2{__float_as_uint(low), __float_as_uint(high)};
    }
  };
  m.merge(shares, put);
  __syncthreads();
  if (groups == 1) return 1;
  const int there = min(groups, job.splits);
  for (int t = threadIdx.x / 256; t < some; t += kValueThreads / 256) {
    uint32_t* at = means + t * groups * kMeanStride + threadIdx.x % 256 * 2;
    float low = 0, high = 0;
    for (int i = 0; i < there; ++i) {
      const uint2 two = *reinterpret_cast<const uint2*>(at + i * kMeanStride);
      low += __uint_as_float(two.x), high += __uint_as_float(two.y);
    }
    *reinterpret_cast<uint2*>(at) = pack_mean(low, high);
  }
  __syncthreads();
  return groups;
}

// Dynamic shared memory: the weights, the means, then the shares.
inline int means_for(int64_t tokens) { return static_cast<int>(std::clamp<int64_t>(tokens, kPairs, kTogether)); }
inline size_t values_shared(int64_t tokens, int splits) {
  return 16 * 16 * kValueThreads +
         sizeof(uint32_t) * (means_for(tokens) * kMeanStride + std::min<int64_t>(tokens, kTogether) * splits);
}
__global__ void __launch_bounds__(kValueThreads)
    values_kernel(const __grid_constant__ Job job, int64_t tokens, int means_at_once, __nv_bfloat16* __restrict__ out) {
  extern __shared__ __align__(16) uint4 weights[];
  __shared__ float4 others[kTogether / 8][kPairs][32];  // what the second warps of the pairs have made
  const int head = blockIdx.x, lane = threadIdx.x % 32, warp = threadIdx.x / 32, pair = warp / 2, half = warp % 2;
  const int column = half * (kRank / 2) + lane % 4 * 8;
  allow_successor();
  uint32_t* means = reinterpret_cast<uint32_t*>(weights + 16 * kValueThreads);
  ValueWarp own{.kept = weights, .value = job.value, .row = lane / 4};
  own.rows = job.w + (static_cast<int64_t>(head) * (job.nope + job.value) + job.nope) * kRank + column;
  own.ask(pair);
  await_predecessor();
  for (int64_t t0 = 0; t0 < tokens; t0 += kTogether) {
    const int some = static_cast<int>(min(int64_t{kTogether}, tokens - t0));
    const int apart = merge_means(job, t0, some, means, reinterpret_cast<float*>(means + means_at_once * kMeanStride));
    for (int tile = pair; tile / kPairs * kPairs * 16 < job.value; tile += kPairs) {
      if (job.value > kPairs * 16) own.ask(tile);
      uint4 w[16];
      own.take(w);
      float c[kTogether / 8][4];
#pragma unroll
      for (int n = 0; n < kTogether / 8; ++n) {
        if (8 * n >= some) break;
        // What there is past the last token becomes columns that are not stored.
        multiply_means(w, means + min(8 * n + lane / 4, some - 1) * apart * kMeanStride + column, c[n]);
        if (half == 1) others[n][pair][lane] = make_float4(c[n][0], c[n][1], c[n][2], c[n][3]);
      }
      __syncthreads();
#pragma unroll
      for (int n = 0; n < kTogether / 8; ++n) {
        if (half == 1 || 8 * n >= some) break;
        const float4 other = others[n][pair][lane];
        const float all[4] = {c[n][0] + other.x, c[n][1] + other.y, c[n][2] + other.z, c[n][3] + other.w};
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int t = 8 * n + lane % 4 * 2 + i % 2, row = tile * 16 + lane / 4 + i / 2 * 8;
          if (t < some && row < job.value)
            out[((t0 + t) * job.heads + head) * job.value + row] = __float2bfloat16_rn(all[i]);
        }
      }
      __syncthreads();
    }
  }
}

inline constexpr int64_t kAbsorbed = int64_t{1} << 25;  // values of absorbed queries in scratch memory

// latent_attention_cached() of what takes() has, in three launches: bf16, all keys.
inline void attend(CudaState& s, const LatentQueries& q, ConstTensorView w, ConstTensorView positions,
                   const LatentCache& cache, const LatentArgs& z, TensorView out) {
  const int64_t all = out.rows(), seqs = cache.latent.shape[0], capacity = cache.latent.shape[1];
  const int64_t at_once = std::clamp<int64_t>(kAbsorbed / (z.heads * z.rank), 1, std::min<int64_t>(all, 65535));
  const int splits = splits_for(s, z.heads, at_once, capacity);
  const int64_t rows = at_once * z.heads;
  auto* mean = s.scratch_of<__nv_bfloat16>(rows * z.rank + rows * splits * (z.rank + 6));
  __nv_bfloat16* absorbed = mean + rows * splits * z.rank;
  auto* weight = reinterpret_cast<float2*>(absorbed + rows * z.rank);
  FEWBIT_CUDA_CALL(cudaFuncSetAttribute(values_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                        static_cast<int>(values_shared(at_once, splits))));
  for (int64_t t = 0; t < all; t += at_once) {
    const int64_t tokens = std::min(at_once, all - t);
    const Job job{.positions = positions.as<int32_t>() + t,
                  .len = all / seqs,
                  .before = t,
                  .heads = z.heads,
                  .splits = splits,
                  .scale = z.scale,
                  .mean = reinterpret_cast<uint4*>(mean),
                  .top = reinterpret_cast<float*>(weight + rows * splits),
                  .weight = weight,
                  .latent = cache.latent.as<__nv_bfloat16>(),
                  .k_rope = cache.k_rope.as<__nv_bfloat16>(),
                  .capacity = capacity,
                  .w = w.as<__nv_bfloat16>(),
                  .nope = static_cast<int>(z.nope),
                  .value = static_cast<int>(z.value)};
    const dim3 heads(static_cast<unsigned>(z.heads));
    launch_overlapping(s, absorb_kernel, heads, dim3(kAbsorbThreads), 0, q.nope.as<__nv_bfloat16>() + t * q.nope.cols(),
                       job, tokens, absorbed);
    launch(s, job, absorbed, q.rope.as<__nv_bfloat16>() + t * q.rope.cols(), tokens, seqs);
    launch_overlapping(s, values_kernel, heads, dim3(kValueThreads), values_shared(tokens, splits), job, tokens,
                       means_for(tokens), out.as<__nv_bfloat16>() + t * out.cols());
  }
}

}  // namespace fewbit::cuda::latent_wide
