#pragma once
// Merging of the splits of a query row by the blocks that have them, which are a cluster: each reads the others'
// results in their shared memory.
#include "kernels/attention/attention_decode.cuh"
#include "kernels/device/hopper.cuh"

namespace fewbit::cuda::append_decode {

// More are slower than a launch that merges them: 25.7 us for 19.6 with eight, 4 sequences of 8,192 positions.
inline constexpr int kMostInCluster = 2;

// The result of a block's split.
template <class S>
struct SplitResult {
  static_assert(S::kDim == 128);  // four columns a lane
  alignas(16) float o[S::kRows][S::kDim];
  float2 ml[S::kRows];
};

#ifdef FEWBIT_SM90A
__device__ __forceinline__ float2 read_two(uint32_t in_cluster) {
  float2 v;
  asm volatile("ld.shared::cluster.v2.f32 {%0, %1}, [%2];" : "=f"(v.x), "=f"(v.y) : "r"(in_cluster) : "memory");
  return v;
}
__device__ __forceinline__ float4 read_four(uint32_t in_cluster) {
  float4 v;
  asm volatile("ld.shared::cluster.v4.f32 {%0, %1, %2, %3}, [%4];"
               : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w)
               : "r"(in_cluster)
               : "memory");
  return v;
}

// Writes the rows of the output that fall to this block, a warp each: rows split, split + splits, ... All blocks of the
// cluster call, when their results are complete for the calling thread.
template <class S>
__device__ __forceinline__ void merge_cluster(const attention_decode::Block<S>& block, const SplitResult<S>& own) {
  const auto& a = block.a;
  const attention_decode::Job& job = block.job;
  const int lane = threadIdx.x % 32;
  __syncwarp();  // or a warp that has parted meets a barrier that is none for parts of a warp
  cluster_sync();
  for (int row = block.split + threadIdx.x / 32 * job.splits; row < block.rows; row += S::kWarps * job.splits) {
    float2 ml[kMostInCluster];
    float4 o[kMostInCluster];
#pragma unroll
    for (int i = 0; i < kMostInCluster; ++i) {
      ml[i] = {-INFINITY, 0}, o[i] = {0, 0, 0, 0};
      if (i >= job.splits) continue;
      ml[i] = read_two(address_in_cluster(shared_address(&own.ml[row]), i));
      o[i] = read_four(address_in_cluster(shared_address(&own.o[row][4 * lane]), i));
    }
    float weight[kMostInCluster], l = 0;
    const float m = merged_reference(ml);
    merge_weights(weight, ml, m, l);
    const int64_t to = block.query_row(row);
    l = with_sink(l, m, a.sinks, static_cast<int>(to / a.d % a.heads));
    float v[4] = {};
#pragma unroll
    for (int i = 0; i < kMostInCluster; ++i) {
      const float share = l > 0 ? weight[i] / l : 0.f;
      v[0] += share * o[i].x, v[1] += share * o[i].y, v[2] += share * o[i].z, v[3] += share * o[i].w;
    }
    if (job.turn_back != 0) attention_decode::turn_quads<32>(v, job.turn_back);
    *reinterpret_cast<uint2*>(a.out + to + 4 * lane) = {pack_bf16(v[0], v[1]), pack_bf16(v[2], v[3])};
  }
  __syncwarp();
  cluster_sync();  // no block leaves while another one reads its memory
}
#else
template <class S>
__device__ __forceinline__ void merge_cluster(const attention_decode::Block<S>&, const SplitResult<S>&) {}
#endif

}  // namespace fewbit::cuda::append_decode
