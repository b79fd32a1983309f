#pragma once
// The Marlin product for many rows on Hopper. A block owns a tile of 256 outputs and kTokens rows of x; of 256 rows the
// two blocks of a cluster have half of the outputs each, and x is copied once for both. A block walks over k, 64 values
// a stage. Three warps keep the stages filled by bulk copies: the words as they lie, scales and zero points of the
// stage's groups, and x through a tensor map in the 128-byte swizzle. Two warpgroups have half of the block's outputs
// each: a lane turns its words into (code - zero) * scale, rounded to bf16, in registers, which are the 64-row operand
// of wgmma; the next k-tile is turned while the tensor cores work on this one.
//
// The grid is resident. Tiles that make up whole rounds of the grid are computed whole; the remaining ones (all of
// them, where there are few) are cut along k into runs of equal length, one a cluster, and come last
// (marlin_wide_end.cuh).
#include "kernels/device/launch.cuh"
#include "kernels/products/marlin/marlin_wide_end.cuh"

namespace fewbit::cuda {

#ifdef FEWBIT_SM90A

// The side that multiplies: two warpgroups.
template <class S>
__device__ __forceinline__ void wide_products(const WideJob& job, const WideMaps& maps, const WideMemory<S>& memory,
                                              uint64_t* full, uint64_t* empty, uint64_t* before_y) {
  const WideLane<S> l;
  const uint32_t full_at = kept_address(full), empty_at = kept_address(empty),
                 words_at = kept_address(memory.words + l.chunk * S::kChunkBytes + l.lane * 16 + l.sub * 4),
                 scales_at = kept_address(memory.scales + l.chunk * 128 + l.lane / 4 * 16 + l.sub * 4),
                 zeros_at = kept_address(memory.zeros + l.chunk * 32 + l.lane / 4 * 4);
  const uint64_t x_at = wgmma_matrix(memory.x);
  WideGroup<S> group;
  WideWalk<S> walk(job);
  WideRun run;
  WideEnd<S> end(job, maps, l, memory.slices, before_y);
  int slot = 0;
  uint32_t phase = 0;
  static_assert(S::kCluster <= 2);
  const uint32_t twin_empty_at = S::kCluster == 1 ? 0 : kept(address_in_cluster(empty_at, wide_rank<S>() ^ 1));
  // Lane 0 speaks for its warp: what the other lanes have read of the stage went into a product that the
  // whole warp has waited for. The other block of the cluster copies x here too.
  const auto release = [&](int at) {
    if (l.lane >= kArrivingLanes) return;
    barrier_arrive(empty_at + 8 * at);
    if constexpr (S::kCluster == 2) barrier_arrive_in_cluster(twin_empty_at + 8 * at);
  };
  // Of the stage's i-th group.
  const auto set_group = [&](int i) {
    const int at = slot * S::kGroups + i;
    uint32_t pairs[S::kOperands];
    load_shared_words(pairs, scales_at + at * S::kScaleBytes);
#pragma unroll
    for (int m = 0; m < S::kOperands; ++m) group.set_scales(pairs[m], m);
    if constexpr (S::kZeros) group.set_zeros(load_shared(zeros_at + at * S::kZeroBytes), l);
  };
  while (walk.next(run)) {
    float sums[S::kOperands][S::kTokens / 2] = {};  // of this run only, for the registers of the end
    int before = 0;
    for (int step = run.from; step < run.to; ++step) {
      barrier_await(full_at + 8 * slot, phase);
      uint32_t words[kWideTiles][S::kOperands];
#pragma unroll
      for (int i = 0; i < kWideTiles; ++i)
        load_shared_words(words[i], words_at + slot * S::kWordBytes + i * S::kTileBytes);
      // From a lane, so that the compiler takes the address for uniform: one instruction in place of four for
      // each k-tile.
      const uint64_t x = x_at + __shfl_sync(0xffffffffu, slot, 0) * (S::kXBytes >> 4);
#pragma unroll
      for (int i = 0; i < kWideTiles; ++i) {
        if (S::kFine ? i % 2 == 0 : i == 0) set_group(i / 2);
        uint32_t a[S::kOperands][4];
#pragma unroll
        for (int m = 0; m < S::kOperands; ++m) group.operand(a[m], words[i][m], m);
        wgmma_fence();
#pragma unroll
        for (int m = 0; m < S::kOperands; ++m) wgmma(sums[m], a[m], x + 2 * i, true);
        wgmma_commit();
        wgmma_wait<1>();  // the k-tile before: its registers are free, and with the first its stage
        if (i == 0 && step > run.from) release(before);
      }
      before = slot;
      if (++slot == S::kStages) {
        slot = 0;
        phase ^= 1;
      }
    }
    wgmma_wait<0>();
#pragma unroll
    for (int m = 0; m < S::kOperands; ++m) pin(sums[m]);
    release(before);
    end.seat(run.tile);
    if (run.to - run.from < job.steps) {
      const WideMeeting<S> meeting(job, run.tile, end.octets());
      if (!meeting.ends()) {
        end_shared(job, meeting, run.tile, end, sums, memory.x);
        continue;
      }
      uint32_t* counter = wide_counter<S>(job, run.tile);
      if (threadIdx.x == 0) await_count(counter, 1);
      meet_threads(kWideMeet, kWideMultiplying);
      if (threadIdx.x == 0) *counter = 0;
      const float4* more = wide_partial(job, meeting, 1);
#pragma unroll
      for (int q = 0; q < S::kQuads; ++q)
        if (q % S::kOctets < end.octets())
          add_quad(sums[q / S::kOctets] + 4 * (q % S::kOctets), __ldcg(more + q * kWideMultiplying));
    }
    end.store(sums);
  }
  end.leave();
}

// All threads of the blocks that copy for each other.
template <class S>
__device__ __forceinline__ void meet() {
  if constexpr (S::kCluster > 1)
    cluster_meet();
  else
    __syncthreads();
}

#endif  // FEWBIT_SM90A

template <class S>
__global__ void __launch_bounds__(kWideThreads, 1)
    marlin_wide_kernel(const __grid_constant__ WideJob job, const __grid_constant__ WideMaps maps) {
#ifdef FEWBIT_SM90A
  extern __shared__ __align__(16) uint8_t shared[];
  __shared__ uint64_t full[S::kStages], empty[S::kStages], before_y[2];
  allow_successor();
  const WideMemory<S> memory(shared);
  if (!job.weights[0].w.grouped())  // the scales are applied to the sums
    for (int i = threadIdx.x; i < S::kStages * S::kGroups * S::kScaleBytes / 2; i += kWideThreads)
      reinterpret_cast<__half*>(memory.scales)[i] = __half(1.f);
  if (threadIdx.x == 0) {
    for (int i = 0; i < S::kStages; ++i) {
      barrier_init(full + i, kWideFeeders);
      barrier_init(empty + i, S::kCluster * kArrivingLanes * kWideMultiplying / 32);
    }
    for (int i = 0; i < 2; ++i) barrier_init(before_y + i, 1);
    barrier_publish();
  }
  meet<S>();
  // Only x was written by a kernel before this one; weights need not wait for it.
  const int feeder = static_cast<int>(threadIdx.x - kWideMultiplying) / 32;
  if (threadIdx.x < kWideMultiplying) {
    take_registers<232>();
    await_predecessor();
    wide_products<S>(job, maps, memory, full, empty, before_y);
  } else {
    give_registers<40>();
    if (feeder == 0) {
      await_predecessor();
      feed_x<S>(job, maps, memory, full, empty);
    } else if (feeder == 1) {
      feed_words<S>(job, maps, memory, full, empty);
    } else if (feeder == 2) {
      feed_groups<S>(job, memory, full, empty);
    } else {
      announce<S>(job);
    }
  }
  if constexpr (S::kCluster > 1) {  // the others may still arrive at this block's barriers
    __syncwarp();
    cluster_meet();
  }
#endif
}

}  // namespace fewbit::cuda
