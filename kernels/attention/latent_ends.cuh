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

// The mean of a token's latents over its splits s = group, group + groups, ...: the lane's eight values of a half.
__device__ __forceinline__ void merge_splits(const Job& job, int64_t at, int group, int groups, int half,
                                             float (&mean)[8]) {
  constexpr int kMost = kMostSplits / 32;
  const int lane = threadIdx.x % 32;
  float share[kMost], weight[kMost], top = -INFINITY, all = 0;
#pragma unroll
  for (int i = 0; i < kMost; ++i) {
    const int s = 32 * i + lane;
    const bool there = s < job.splits;
    share[i] = there ? __ldcg(job.top + at + s) : -INFINITY;
    const float2 both = there ? __ldcg(job.weight + at + s) : float2{};
    weight[i] = both.x + both.y;
  }
#pragma unroll
  for (int i = 0; i < kMost; ++i) top = fmaxf(top, share[i]);
  top = warp_max(top);
#pragma unroll
  for (int i = 0; i < kMost; ++i) share[i] = expf(share[i] - top), all = fmaf(share[i], weight[i], all);
  const float inverse = 1 / warp_sum(all);
#pragma unroll
  for (int i = 0; i < kMost; ++i) {
    if (32 * i >= job.splits) break;
#pragma unroll 4
    for (int j = group; j < 32; j += groups) {
      const float own = __shfl_sync(0xffffffffu, share[i], j) * inverse;
      uint4 v{};
      if (own > 0) v = __ldcg(job.mean + ((at + 32 * i + j) * 2 + half) * (kRank / 16) + lane);  // or there is nothing
      const uint32_t two[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        mean[2 * k] = fmaf(own, __uint_as_float(two[k] << 16), mean[2 * k]);
        mean[2 * k + 1] = fmaf(own, __uint_as_float(two[k] & 0xffff0000u), mean[2 * k + 1]);
      }
    }
  }
}

// Merges the splits of a head and multiplies by its value weights, 16 rows of which two warps have, half of the latent
// each, for eight tokens at a time, by mma: a mean is the sum of two bf16 numbers there. Grid: heads.
inline constexpr int kValueThreads = 512, kPairs = kValueThreads / 64, kTogether = 8;
struct ValueWarp {
  const __nv_bfloat16* rows;  // the lane's columns of the head's value weights
  int value, row, column;
  uint4 w[8][2];

  // Of rows `tile` * 16 + row and 8 further.
  __device__ __forceinline__ void load(int tile) {
#pragma unroll
    for (int i = 0; i < 16; ++i) {
      const int own = tile * 16 + row + i % 2 * 8;
      w[i / 2][i % 2] = own < value ? __ldg(reinterpret_cast<const uint4*>(rows + own * kRank + i / 2 * 32)) : uint4{};
    }
  }
  // c = rows times the means; mean: the lane's columns of the token that it brings, or null.
  __device__ __forceinline__ void multiply(const float* mean, float (&c)[4]) const {
    float part[4][4] = {};
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      float v[8] = {};
      if (mean) {
        const float4 low = *reinterpret_cast<const float4*>(mean + 32 * i),
                     high = *reinterpret_cast<const float4*>(mean + 32 * i + 4);
        v[0] = low.x, v[1] = low.y, v[2] = low.z, v[3] = low.w;
        v[4] = high.x, v[5] = high.y, v[6] = high.z, v[7] = high.w;
      }
      uint32_t first[4], rest[4];
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        first[j] = pack_bf16(v[2 * j], v[2 * j + 1]);
        rest[j] = pack_bf16(v[2 * j] - __uint_as_float(first[j] << 16),
                            v[2 * j + 1] - __uint_as_float(first[j] & 0xffff0000u));
      }
      const uint4 a = w[i][0], b = w[i][1];
      // The 32 columns in another order than their own, the same one in both operands.
      mma_bf16(part[0], {a.x, b.x, a.y, b.y}, rest[0], rest[1]);
      mma_bf16(part[1], {a.z, b.z, a.w, b.w}, rest[2], rest[3]);
      mma_bf16(part[2], {a.x, b.x, a.y, b.y}, first[0], first[1]);
      mma_bf16(part[3], {a.z, b.z, a.w, b.w}, first[2], first[3]);
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) c[i] = (part[0][i] + part[1][i]) + (part[2][i] + part[3][i]);
  }
};
__global__ void __launch_bounds__(kValueThreads)
    values_kernel(const __grid_constant__ Job job, int64_t tokens, __nv_bfloat16* __restrict__ out) {
  __shared__ float means[kTogether][kRank];
  __shared__ float4 others[kPairs][32];  // what the second warps of the pairs have made
  const int head = blockIdx.x, lane = threadIdx.x % 32, warp = threadIdx.x / 32, pair = warp / 2, half = warp % 2;
  allow_successor();
  ValueWarp own{.value = job.value, .row = lane / 4, .column = half * (kRank / 2) + lane % 4 * 8};
  own.rows = job.w + (static_cast<int64_t>(head) * (job.nope + job.value) + job.nope) * kRank + own.column;
  own.load(pair);
  await_predecessor();
  for (int64_t t0 = 0; t0 < tokens; t0 += kTogether) {
    const int some = static_cast<int>(min(int64_t{kTogether}, tokens - t0));
    const int groups = some == 1 ? 8 : some == 2 ? 4 : some <= 4 ? 2 : 1;  // of a token's splits
    const int token = pair / groups;
    float merged[8] = {};
    if (token < some)
      merge_splits(job, ((t0 + token) * job.heads + head) * job.splits, pair % groups, groups, half, merged);
    float2* to = reinterpret_cast<float2*>(&means[pair][half * (kRank / 2) + lane / 4 * 32 + lane % 4 * 2]);
#pragma unroll
    for (int j = 0; j < 4; ++j) to[4 * j] = make_float2(merged[2 * j], merged[2 * j + 1]);
    __syncthreads();
    if (groups > 1) {
      for (int t = 0; t < some; ++t) {
        float all = 0;
        for (int i = 0; i < groups; ++i) all += means[t * groups + i][threadIdx.x];
        means[t * groups][threadIdx.x] = all;
      }
      __syncthreads();
    }
    const float* mean = lane / 4 < some ? &means[lane / 4 * groups][own.column] : nullptr;
    for (int tile = pair; tile / kPairs * kPairs * 16 < job.value; tile += kPairs) {
      if (job.value > kPairs * 16) own.load(tile);
      float c[4];
      own.multiply(mean, c);
      if (half == 1) others[pair][lane] = make_float4(c[0], c[1], c[2], c[3]);
      __syncthreads();
      if (half == 0) {
        const float4 other = others[pair][lane];
        const float all[4] = {c[0] + other.x, c[1] + other.y, c[2] + other.z, c[3] + other.w};
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const int t = lane % 4 * 2 + i % 2, row = tile * 16 + lane / 4 + i / 2 * 8;
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
    launch_overlapping(s, values_kernel, heads, dim3(kValueThreads), 0, job, tokens,
                       out.as<__nv_bfloat16>() + t * out.cols());
  }
}

}  // namespace fewbit::cuda::latent_wide
