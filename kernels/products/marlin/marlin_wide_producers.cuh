#pragma once
// The producer warps of marlin_wide.cuh: they fill the stages of a block's pipeline by bulk copies.
#include "kernels/products/marlin/marlin_wide_job.cuh"

namespace fewbit::cuda::marlin_wide {

#ifdef FEWBIT_SM90A

// The shared memory of a block: subtiles of results of both consumer warpgroups, then arrays over the stages.
template <class S>
struct SharedMemory {
  uint8_t *subtiles, *x, *words, *scales, *zeros;
  __device__ __forceinline__ explicit SharedMemory(uint8_t* shared) {
    subtiles = shared + (S::kAlign - shared_address(shared) % S::kAlign) % S::kAlign;
    x = subtiles + 2 * S::kSubtiles * S::kSubtileBytes;
    words = x + S::kStages * S::kXBytes;
    scales = words + S::kStages * S::kWordBytes;
    zeros = scales + S::kStages * S::kGroups * S::kScaleBytes;
  }
};

// The producers: one warp each for x, for the words, and for scales with zero points, so that none of them holds up the
// others. Each announces the bytes that it copies. produce() takes a warp through all stages of the block's work
// ranges; all its lanes call copy(position, step, slot, barrier) once the slot is empty, `barrier` being the shared
// address of the slot's "full" barrier.
constexpr int kProducers = 3;
template <class S, class Copy>
__device__ __forceinline__ void produce(const Job& job, uint64_t* full, uint64_t* empty, Copy&& copy) {
  const uint32_t full_at = kept_address(full), empty_at = kept_address(empty);
  TileScheduler<S> scheduler(job);
  Range range;
  int slot = 0;
  uint32_t phase = 1;  // in the first round all stages are empty
  while (scheduler.next(range)) {
    const TilePosition<S> position(job, range.tile);
    for (int step = range.from; step < range.to; ++step) {
      barrier_await(empty_at + 8 * slot, phase);
      copy(position, step, slot, full_at + 8 * slot);
      if (++slot == S::kStages) {
        slot = 0;
        phase ^= 1;
      }
    }
  }
}
template <class S>
__device__ __forceinline__ void produce_x(const Job& job, const Maps& maps, const SharedMemory<S>& memory,
                                          uint64_t* full, uint64_t* empty) {
  const uint32_t to = kept_address(memory.x);
  produce<S>(job, full, empty, [&](const TilePosition<S>& position, int step, int slot, uint32_t barrier) {
    if (!elected()) return;
    barrier_expect(barrier, S::kXBytes);
#pragma unroll
    for (int i = 0; i < S::kBoxes; ++i) {
      const uint32_t box = to + slot * S::kXBytes + i * S::kBoxOfXBytes;
      const int column = step * S::kStageDepth + i * kBoxDepth;
      if constexpr (S::kCluster == 1)
        bulk_copy_box(box, &maps.x, column, position.row, barrier);
      else  // each block copies a part of x for all blocks of the cluster
        bulk_copy_box_to_all<S::kCluster>(box + cluster_rank<S>() * (S::kBoxOfXBytes / S::kCluster), &maps.x, column,
                                          position.row + cluster_rank<S>() * (S::kTokens / S::kCluster), barrier);
    }
  });
}
template <class S>
__device__ __forceinline__ void produce_words(const Job& job, const Maps& maps, const SharedMemory<S>& memory,
                                              uint64_t* full, uint64_t* empty) {
  const uint32_t to = kept_address(memory.words);
  produce<S>(job, full, empty, [&](const TilePosition<S>& position, int step, int slot, uint32_t barrier) {
    if (!elected()) return;
    barrier_expect(barrier, S::kWordBytes);
    bulk_copy_box(to + slot * S::kWordBytes, &maps.words[position.weight], 0, position.chunk, step * S::kStageTiles,
                  barrier);
  });
}
template <class S>
__device__ __forceinline__ void produce_groups(const Job& job, const SharedMemory<S>& memory, uint64_t* full,
                                               uint64_t* empty) {
  const uint32_t to_scales = kept_address(memory.scales), to_zeros = kept_address(memory.zeros);
  produce<S>(job, full, empty, [&](const TilePosition<S>& position, int step, int slot, uint32_t barrier) {
    const MarlinSource& w = job.weights[position.weight].w;
    const int scale_bytes = w.grouped() ? position.chunks * 128 : 0,
              zero_bytes = S::kZeros ? position.chunks * 8 * S::kBits : 0;
    if (!elected()) return;
    barrier_expect(barrier, S::kGroups * (scale_bytes + zero_bytes));
#pragma unroll
    for (int i = 0; i < S::kGroups; ++i) {
      const int64_t group = min(step * S::kStageTiles + 2 * i, w.k_tiles() - 1) >> job.group_shift;
      const int at = slot * S::kGroups + i;
      if (scale_bytes)
        bulk_copy(to_scales + at * S::kScaleBytes, w.s + group * w.out + position.chunk * marlin::kTileN, scale_bytes,
                  barrier);
      if (S::kZeros)
        bulk_copy(to_zeros + at * S::kZeroBytes,
                  w.z + (group * (w.out / marlin::kTileN) + position.chunk) * (2 * S::kBits), zero_bytes, barrier);
    }
  });
}

#endif  // FEWBIT_SM90A

}  // namespace fewbit::cuda::marlin_wide
