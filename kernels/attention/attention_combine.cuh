#pragma once
// The second kernel of attention_decode.cuh: merges what the splits of the keys have left, one block a query row.
#include "kernels/attention/attention_source.cuh"
#include "kernels/attention/softmax_merge.cuh"
#include "kernels/device/launch.cuh"
#include "kernels/device/mma.cuh"
#include "kernels/device/reduce.cuh"
#include "kernels/device/vec.cuh"

namespace fewbit::cuda::attention_decode {

inline constexpr int kMaxSplits = 64;        // two a lane of the warp that weighs them
inline constexpr int kCombineThreads = 128;  // 4 columns each: at least two groups of threads up to head_dim 256

// A launch over the cache, besides its operands.
struct Job {
  float* ml;      // [query rows, splits, 2]: m, the reference of the weights (base 2), and l, their sum
  float* o;       // [query rows, splits, d]
  int splits;     // of the keys; with one the output is written at once, and ml and o are null
  int group;      // query heads of a kv head
  int rows;       // query rows of a kv head of a sequence: `group` times its new tokens
  int row_tiles;  // tiles that these rows fill
  // The kernel right before writes, of what is read here, only the new keys and the queries, and let this one begin
  // after all before it had ended; one new token a sequence.
  bool behind_append;
  bool cluster;     // the splits are a cluster, which merges them itself
  int early;        // stages of the ring that are then filled before that kernel has ended
  float turn_back;  // 0, or the factor of a Hadamard matrix that the heads of the output are multiplied by
  int lighter;      // tiles of keys that the last split has less than the others, for the new key's sake
};

// Whether heads of d values are turned back by combine_splits_kernel.
constexpr bool combine_turns(int d) { return d == 64 || d == 128; }

// Four values of each of kLanes lanes by a Hadamard matrix, rounded before and after as hadamard_head() does it
// (kernels/model/hadamard.cuh), with its sums.
template <int kLanes>
__device__ __forceinline__ void turn_quads(float (&v)[4], float scale) {
  constexpr unsigned kMask = kLanes == 32 ? 0xffffffffu : (1u << kLanes) - 1;
#pragma unroll
  for (float& x : v) x = to_f32(from_f32<__nv_bfloat16>(x));
#pragma unroll
  for (int half = 1; half < 4; half *= 2)
#pragma unroll
    for (int i = 0; i < 4; ++i)
      if (i / half % 2 == 0) {
        const float a = v[i], b = v[i + half];
        v[i] = a + b, v[i + half] = a - b;
      }
#pragma unroll
  for (int step = 1; step < kLanes; step *= 2)
#pragma unroll
    for (float& x : v) {
      const float other = __shfl_xor_sync(kMask, x, step);
      x = threadIdx.x & step ? other - x : x + other;
    }
#pragma unroll
  for (float& x : v) x *= scale;
}

// The weights of a row's splits, divided by the sum over all; a warp's work.
__device__ __forceinline__ void weigh_splits(float (&weights)[kMaxSplits], const float* ml, int splits,
                                             const float* sinks, int head) {
  constexpr int kEach = kMaxSplits / 32;
  const int lane = threadIdx.x;
  float2 own[kEach];
  float weight[kEach], l = 0;
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const int s = lane + 32 * i;
    own[i] = s < splits ? *reinterpret_cast<const float2*>(ml + 2 * s) : float2{-INFINITY, 0.f};
  }
  const float m = warp_max(merged_reference(own));
  merge_weights(weight, own, m, l);
  l = with_sink(warp_sum(l), m, sinks, head);
#pragma unroll
  for (int i = 0; i < kEach; ++i) weights[lane + 32 * i] = l > 0 ? weight[i] / l : 0.f;  // 0: a row that is none
}

// Adds the splits in their order. The threads stand in teams of d / 4, four columns a thread; each team adds every few
// splits, then the first team adds the teams' sums. All loads are under way at once: a split without keys has left
// zeros.
template <class C>
__global__ void __launch_bounds__(kCombineThreads)
    combine_splits_kernel(const __grid_constant__ AttentionSource<__nv_bfloat16, C> a,
                          const __grid_constant__ Job job) {
  __shared__ __align__(16) float weights[kMaxSplits];  // zero past the last split
  __shared__ __align__(16) float4 sums[kCombineThreads];
  allow_successor();
  const int row = blockIdx.x, tile = row / job.rows, r = row % job.rows, token_in_seq = r / job.group;
  const int64_t token = static_cast<int64_t>(tile / a.kv_heads) * a.len + token_in_seq;
  const int head = tile % a.kv_heads * job.group + r - token_in_seq * job.group;
  const float* ml = job.ml + static_cast<int64_t>(row) * job.splits * 2;
  const float* o = job.o + static_cast<int64_t>(row) * job.splits * a.d;
  const int quads = a.d / 4, teams = kCombineThreads / quads;
  const int team = threadIdx.x / quads, quad = threadIdx.x % quads;
  constexpr int kAhead = 16;  // splits that a thread asks for together
  await_predecessor();
  float4 ahead[kAhead];
  const auto load = [&](int first) {
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      const int s = first + team + i * teams;
      ahead[i] = team < teams && s < job.splits ? *reinterpret_cast<const float4*>(o + s * a.d + quad * 4)
                                                : float4{0, 0, 0, 0};
    }
  };
  load(0);
  if (threadIdx.x < 32) weigh_splits(weights, ml, job.splits, a.sinks, head);
  __syncthreads();
  float4 sum = {0, 0, 0, 0};
  for (int first = 0; first < job.splits; first += kAhead * teams) {
    if (first > 0) load(first);
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      const float weight = weights[min(first + team + i * teams, kMaxSplits - 1)];  // of zeros past the last split
      sum.x += weight * ahead[i].x, sum.y += weight * ahead[i].y;
      sum.z += weight * ahead[i].z, sum.w += weight * ahead[i].w;
    }
  }
  sums[threadIdx.x] = sum;
  __syncthreads();
  if (team > 0) return;
  for (int i = 1; i < teams; ++i) {
    const float4 more = sums[i * quads + quad];
    sum.x += more.x, sum.y += more.y, sum.z += more.z, sum.w += more.w;
  }
  if (job.turn_back != 0) {
    float v[4] = {sum.x, sum.y, sum.z, sum.w};
    quads == 32 ? turn_quads<32>(v, job.turn_back) : turn_quads<16>(v, job.turn_back);
    sum = {v[0], v[1], v[2], v[3]};
  }
  uint2 packed = {pack_bf16(sum.x, sum.y), pack_bf16(sum.z, sum.w)};
  *reinterpret_cast<uint2*>(a.out + (token * a.heads + head) * a.d + quad * 4) = packed;
}

}  // namespace fewbit::cuda::attention_decode
