#pragma once
// The kernel for many rows on Hopper (compute capability 9.0a): y = x W^T on Marlin words of 4 or 8 bits, by wgmma.
//
// A tile is 256 outputs times kTokens rows of x. A block has one alone, but tiles of 256 rows belong to a cluster of
// two blocks, each with half of the outputs, and x is copied once for both; of few rows (Shape::kFew) a tile may have
// 128 outputs. Along k a block goes through stages of 64 values, of few rows of 128:
//   producers   three warps fill the stages by bulk copies: the words as they lie, the scales and zero points of the
//               stage's groups, and x through a tensor map in the 128-byte swizzle (marlin_wide_producers.cuh)
//   consumers   two warpgroups, each with half of the block's outputs: a lane turns its words into (code - zero) *
//               scale, rounded to bf16, in registers (marlin_wide_weights.cuh), which are the 64-row operand of
//               wgmma; the next k-tile is turned while the tensor cores work on the current one
//
// The grid is resident. Tiles that make up whole rounds of the grid are computed whole. The remaining ones, or all of
// them where there are few, are cut along k into work ranges of equal length, one a cluster, and come last (stream-K,
// marlin_wide_job.cuh and marlin_wide_reduce.cuh).
#include "kernels/device/launch.cuh"
#include "kernels/products/marlin/marlin_wide_flagged.cuh"
#include "kernels/products/marlin/marlin_wide_producers.cuh"

namespace fewbit::cuda::marlin_wide {

#ifdef FEWBIT_SM90A

// What the two consumer warpgroups do. `full` and `empty`: the barriers of the stages; `before_y`: see Epilogue.
template <class S>
__device__ __forceinline__ void consume(const Job& job, const Maps& maps, const SharedMemory<S>& memory, uint64_t* full,
                                        uint64_t* empty, uint64_t* before_y) {
  const Lane<S> l;
  const uint32_t full_at = kept_address(full), empty_at = kept_address(empty),
                 words_at = kept_address(memory.words + l.words_begin()),
                 scales_at = kept_address(memory.scales + l.chunk * 128 + l.lane / 4 * 16 + l.sub * 4),
                 zeros_at = kept_address(memory.zeros + l.chunk * 8 * S::kBits + l.lane / 4 * S::kBits);
  const uint64_t x_at = wgmma_matrix(memory.x);
  Dequantizer<S> group;
  TileScheduler<S> scheduler(job);
  Range range;
  Epilogue<S> epilogue(job, maps, l, memory.subtiles, before_y);
  int slot = 0;
  uint32_t phase = 0;
  static_assert(S::kCluster <= 2);
  const uint32_t twin_empty_at = S::kCluster == 1 ? 0 : kept(address_in_cluster(empty_at, cluster_rank<S>() ^ 1));
  // Lane 0 arrives for its warp: what the other lanes have read of the stage went into a product that the whole warp
  // has waited for. The other block of the cluster copies x into this stage too, so it must know as well.
  const auto release = [&](int at) {
    if (l.lane >= kArrivingLanes) return;
    barrier_arrive(empty_at + 8 * at);
    if constexpr (S::kCluster == 2) barrier_arrive_in_cluster(twin_empty_at + 8 * at);
  };
  // Reads scales and zero points of the stage's i-th group.
  const auto set_group = [&](int i) {
    const int at = slot * S::kGroups + i;
    group.read(scales_at + at * S::kScaleBytes, zeros_at + at * S::kZeroBytes, l);
  };
  while (scheduler.next(range)) {
    const bool shared = range.to - range.from < job.steps;
    SharedTile<S> shared_tile;
    const auto prepare_end = [&] {
      epilogue.seek(range.tile);
      if (shared) shared_tile = SharedTile<S>(job, range.tile, epilogue.octets());
    };
    if (S::kFew) prepare_end();                     // while the first stage is on its way
    float sums[S::kOperands][S::kTokens / 2] = {};  // of this range only, for the registers of the end
    int before = 0;
    for (int step = range.from; step < range.to; ++step) {
      barrier_await(full_at + 8 * slot, phase);
      uint32_t words[S::kStageTiles][S::kOperands * Dequantizer<S>::kWords];
#pragma unroll
      for (int i = 0; i < S::kStageTiles; ++i)
        load_shared_words(words[i], words_at + slot * S::kWordBytes + i * S::kTileBytes);
      // By a shuffle, so that the compiler takes the address for uniform over the warp: one instruction a k-tile
      // instead of four.
      const uint64_t x = x_at + __shfl_sync(0xffffffffu, slot, 0) * (S::kXBytes >> 4);
#pragma unroll
      for (int i = 0; i < S::kStageTiles; ++i) {
        const uint64_t at = x + 2 * (i % 4) + i / 4 * (S::kBoxOfXBytes >> 4);
        if (S::kFine ? i % 2 == 0 : i == 0) set_group(i / 2);
        uint32_t a[S::kOperands][4];
#pragma unroll
        for (int m = 0; m < S::kOperands; ++m) group.operand(a[m], words[i], m);
        wgmma_fence();
#pragma unroll
        for (int m = 0; m < S::kOperands; ++m) wgmma(sums[m], a[m], at, true);
        wgmma_commit();
        // For the k-tile before: its registers are free then, and at a stage's first k-tile the stage before.
        wgmma_wait<1>();
        if (i == 0 && step > range.from) release(before);
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
    if (!S::kFew) prepare_end();
    if (shared && end_shared(job, shared_tile, range.tile, epilogue, sums, memory.x)) continue;
    epilogue.store(sums);
  }
  epilogue.leave();
}

// All threads of the blocks that copy for each other wait for each other.
template <class S>
__device__ __forceinline__ void sync_cluster() {
  if constexpr (S::kCluster > 1)
    cluster_sync();
  else
    __syncthreads();
}

#endif  // FEWBIT_SM90A

template <class S>
__global__ void __launch_bounds__(kThreads, 1)
    marlin_wide_kernel(const __grid_constant__ Job job, const __grid_constant__ Maps maps) {
#ifdef FEWBIT_SM90A
  extern __shared__ __align__(16) uint8_t shared[];
  __shared__ uint64_t full[S::kStages], empty[S::kStages], before_y[2];
  const int producer = static_cast<int>(threadIdx.x - kConsumers) / 32;
  if (threadIdx.x >= kConsumers && threadIdx.x % 32 == 0) {
    if (producer == 0) prefetch_map(&maps.x);
    if (producer == 1)
      for (int i = 0; i < kWeights; ++i)
        if (job.weights[i].w.b) prefetch_map(&maps.words[i]);
  }
  allow_successor();
  const SharedMemory<S> memory(shared);
  if (!job.weights[0].w.grouped())  // one group: its scale is applied to the sums, by the epilogue
    for (int i = threadIdx.x; i < S::kStages * S::kGroups * S::kScaleBytes / 2; i += kThreads)
      reinterpret_cast<__half*>(memory.scales)[i] = __half(1.f);
  if (threadIdx.x < 32) {
    const int i = threadIdx.x;
    if (i < S::kStages) {
      barrier_init(full + i, kProducers);
      barrier_init(empty + i, S::kCluster * kArrivingLanes * kConsumers / 32);
    }
    if (i < 2) barrier_init(before_y + i, 1);
    barrier_publish();
  }
  sync_cluster<S>();
  // Only x and y depend on the kernel before this one: the warps that read nothing but weights do not wait for it.
  if (threadIdx.x < kConsumers) {
    take_registers<232>();
    await_predecessor();
    consume<S>(job, maps, memory, full, empty, before_y);
  } else {
    give_registers<40>();
    if (producer == 0) {
      await_predecessor();
      produce_x<S>(job, maps, memory, full, empty);
    } else if (producer == 1) {
      produce_words<S>(job, maps, memory, full, empty);
    } else if (producer == 2) {
      produce_groups<S>(job, memory, full, empty);
    } else if constexpr (!S::kFew) {
      signal_partials<S>(job);
    }
  }
  if constexpr (S::kCluster > 1) {  // the other block may still arrive at this block's barriers
    __syncwarp();
    cluster_sync();
  }
#endif
}

}  // namespace fewbit::cuda::marlin_wide
