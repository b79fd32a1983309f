#pragma once
// How the clusters that share a tile of marlin_wide.cuh (stream-K) bring their partial sums together.
#include "kernels/device/grid_barrier.cuh"
#include "kernels/products/marlin/marlin_wide_epilogue.cuh"

namespace fewbit::cuda::marlin_wide {

#ifdef FEWBIT_SM90A

__device__ __forceinline__ void add_quad(float* to, const float4& more) {
  to[0] += more.x, to[1] += more.y, to[2] += more.z, to[3] += more.w;
}

// The block's arrival counter of a shared tile: blocks of the same rank in their clusters have one together.
template <class S>
__device__ __forceinline__ uint32_t* arrival_counter(const Job& job, int tile) {
  return job.counters + 2 * (tile * S::kCluster + cluster_rank<S>());
}
// The partial sums that cluster `member` of those that share a tile stores for the others, from this thread's first
// quad on.
template <class S>
__device__ __forceinline__ float4* partial_sums(const Job& job, const SharedTile<S>& shared_tile, int member) {
  const int block = (shared_tile.first + member) * S::kCluster + cluster_rank<S>();
  return reinterpret_cast<float4*>(job.partials) +
         (2 * block + (member < shared_tile.adding)) * int64_t{S::kPartialQuads} + threadIdx.x;
}

// Adds this block's octets of a shared tile over all clusters, in the order of k, and stores the outputs. `own`: this
// block's sums, in shared memory. A trip to the L2 takes long, so the sums of kAtOnce clusters of up to kMost octets
// are requested together, and the next ones before these are stored.
template <class S, int kMost, int kAtOnce>
__device__ __forceinline__ void add_splits(const Job& job, const SharedTile<S>& shared_tile, const float4* own,
                                           Epilogue<S>& epilogue) {
  constexpr int kM = S::kOperands, kQuads = kMost * kM;
  float4 some[kAtOnce][kQuads];
  const auto request = [&](int octet, int member) {
#pragma unroll
    for (int b = 0; b < kAtOnce; ++b) {
      const int its = member + b;
      const float4* from = partial_sums(job, shared_tile, its);
#pragma unroll
      for (int i = 0; i < kQuads; ++i) {
        const int at = (i % kM * S::kOctets + octet + i / kM) * kConsumers;
        some[b][i] = its >= shared_tile.count || octet + i / kM >= shared_tile.end ? float4{}
                     : its == shared_tile.own                                      ? own[at]
                                                                                   : __ldcg(from + at);
      }
    }
  };
  request(shared_tile.begin, 0);
#pragma unroll 1
  for (int octet = shared_tile.begin; octet < shared_tile.end;) {
    const int first = octet;
    float v[S::kSubtileOctets * kM][4] = {};
    for (int member = 0; member < shared_tile.count;) {
#pragma unroll
      for (int b = 0; b < kAtOnce; ++b)
#pragma unroll
        for (int i = 0; i < kQuads; ++i) add_quad(v[i], some[b][i]);
      member += kAtOnce;
      if (member >= shared_tile.count) octet += kMost;
      if (octet < shared_tile.end) request(octet, member < shared_tile.count ? member : 0);
    }
    epilogue.store(first, min(kMost, shared_tile.end - first), [&](int i, int m, int e) { return v[i * kM + m][e]; });
  }
}

// The same where exactly one other cluster shares the tile and goes on to another: sums += its partial sums.
template <class S>
__device__ __forceinline__ void add_other(const Job& job, const SharedTile<S>& shared_tile, int tile, int octets,
                                          float (&sums)[S::kOperands][S::kTokens / 2]) {
  uint32_t* counter = arrival_counter<S>(job, tile);
  if (threadIdx.x == 0) await_count(counter, 1);
  named_barrier_sync(kConsumerBarrier, kConsumers);
  if (threadIdx.x == 0) *counter = 0;
  const float4* more = partial_sums(job, shared_tile, 1);
#pragma unroll
  for (int q = 0; q < S::kQuads; ++q)
    if (q % S::kOctets < octets) add_quad(sums[q / S::kOctets] + 4 * (q % S::kOctets), __ldcg(more + q * kConsumers));
}

// Ends a block's work range of a tile that it shares with other clusters: stores its partial sums for them, or in
// shared memory where it adds them itself, and adds its octets over all clusters. False where the block ends the tile
// alone: then the other cluster's sums have been added to `sums`, which remain to be stored.
template <class S>
__device__ __forceinline__ bool end_counted(const Job& job, const SharedTile<S>& shared_tile, int tile,
                                            Epilogue<S>& epilogue, float (&sums)[S::kOperands][S::kTokens / 2],
                                            uint8_t* own_sums) {
  if (shared_tile.ends()) {
    add_other(job, shared_tile, tile, epilogue.octets(), sums);
    return false;
  }
  auto* own = reinterpret_cast<float4*>(own_sums) + threadIdx.x;
  float4* to = partial_sums(job, shared_tile, shared_tile.own);
  if (shared_tile.adds())
    named_barrier_sync(kConsumerBarrier, kConsumers);  // nobody reads the stages any more, which `own` overwrites
#pragma unroll
  for (int q = 0; q < S::kQuads; ++q) {
    const int octet = q % S::kOctets;
    const float* v = sums[q / S::kOctets] + 4 * octet;
    const float4 quad{v[0], v[1], v[2], v[3]};
    if (octet >= shared_tile.begin && octet < shared_tile.end)
      own[q * kConsumers] = quad;
    else if (octet < epilogue.octets())
      __stcg(to + q * kConsumers, quad);
  }
  named_barrier_arrive(shared_tile.adds() ? kLastSignalBarrier : kSignalBarrier, kConsumers + 32);  // signal_partials()
  if (!shared_tile.adds()) return true;
  uint32_t* counter = arrival_counter<S>(job, tile);
  if (threadIdx.x == 0) await_count(counter, shared_tile.count);
  named_barrier_sync(kConsumerBarrier, kConsumers);
  if (S::kTokens <= 64 && shared_tile.end - shared_tile.begin <= 1)  // few tokens: many clusters share the tile
    add_splits<S, 1, 8>(job, shared_tile, own, epilogue);
  else
    add_splits<S, S::kSubtileOctets, 2>(job, shared_tile, own, epilogue);
  leave_barrier(counter, static_cast<uint32_t>(shared_tile.adding));
  return true;
}

// The fourth warp of the producers' warpgroup: counts the block's arrival at a shared tile once its partial sums are
// stored, so that the consumers go on without waiting for their stores.
template <class S>
__device__ __forceinline__ void signal_partials(const Job& job) {
  TileScheduler<S> scheduler(job);
  Range range;
  while (scheduler.next(range)) {
    if (range.to - range.from == job.steps) continue;
    const SharedTile<S> shared_tile(job, range.tile, 0);
    if (shared_tile.ends()) continue;
    named_barrier_sync(shared_tile.adds() ? kLastSignalBarrier : kSignalBarrier, kConsumers + 32);
    if (threadIdx.x % 32 == 0) count_arrival(arrival_counter<S>(job, range.tile));
  }
}

#endif  // FEWBIT_SM90A

}  // namespace fewbit::cuda::marlin_wide
