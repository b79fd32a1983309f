#pragma once
// The kernel for up to 16 rows of x on 4-bit Marlin words as they lie, in groups of 128 values and more: y = x W^T,
// with each weight read once.
//
// As in marlin_stream.cuh a block has one split of k and visits chunks of outputs, and each warp pulls its words
// through a ring of its own (marlin_rows_loader.cuh). Here x of the split lies in shared memory for all warps
// (marlin_rows_block.cuh), and a team of warps has a chunk: the fewer warps, the longer each adds in registers before
// their sums are added in shared memory. Those of the blocks are added in device memory (marlin_rows_reduce.cuh),
// always in the order of k.
//
// What a launch does only once, before its first product and after its last, is kept short, because its instructions
// miss the instruction cache and cost several cycles each. Whatever of it does not lead to x waits until the reads of x
// are under way. Blocks that wait for each other must be resident together: make_plan() (marlin_rows_cuda.cu) asks for
// at most one block a multiprocessor.
#include "kernels/products/marlin/marlin_rows_block.cuh"

namespace fewbit::cuda::marlin_rows {

// Turns the partial sums that the blocks have stored into outputs.
template <class V>
__device__ __forceinline__ void merge(const Job& job, const Block<V>& block, const FlaggedMerge<V>& flagged) {
  if (job.flagged_quads == 1) {
    if (job.splits <= kFewSplits)
      flagged.template add<1, kFewSplits>();
    else
      flagged.template add<1, 8>();
  } else if (job.flagged_quads == kMostFlaggedQuads) {
    flagged.template add<kMostFlaggedQuads, kFewSplits>();
  } else {
    SplitMerge<V> end(job, block.n_block);
    merge_splits(
        job, 0, block.n_block, block.split, [&](int rank, int mergers) { end.prepare(rank, mergers); },
        [&](int, int) { end.add(); });
  }
}

template <class V>
__global__ void __launch_bounds__(32 * V::kMaxWarps, 1) marlin_rows_kernel(const __grid_constant__ Job job) {
  extern __shared__ __align__(128) uint8_t shared[];  // rings that begin within a 128-byte line cost an L1 pass a copy
  allow_successor();
  Block<V> block(job);
  uint8_t* ring = shared + block.warp * V::kRingBytes;
  block.left = reinterpret_cast<float4*>(shared + block.warps * V::kRingBytes);
  block.x = shared + block.warps * V::kWarpBytes;
  block.starts = reinterpret_cast<float*>(block.x + job.rows * job.x_stride);
  const int first_run = block.runs * block.member >> job.team_shift;
  const int runs = kept((block.runs * (block.member + 1) >> job.team_shift) - first_run);
  const int first_chunk = block.n_block + block.team * job.n_blocks, step = block.teams * job.n_blocks;
  Loader<V> loader(job, block.first_run + first_run, runs, first_chunk, step, block.lane);
  const uint32_t ring_at = kept_address(ring + 16 * block.lane);  // this lane's words
  uint32_t fill = 0, slot = 0;  // the slots that are filled and read next, as offsets in bytes
  const auto next = [](uint32_t& of) {
    const uint32_t at = of;
    of = of + V::kStageBytes == V::kRingBytes ? 0 : of + V::kStageBytes;
    return at;
  };
  loader.template fetch<0>(ring_at + next(fill));
  const bool grouped = loader.grouped();
  const FlaggedMerge<V> flagged{
      job, reinterpret_cast<typename FlaggedMerge<V>::Place*>(block.starts + block.runs * V::kTokens) + threadIdx.x};
  // Addresses in shared memory: this lane's row of x and its sums of x; within a slot, its words of the first k-tile,
  // its scales, and the word that holds its zero points.
  uint32_t x, starts, own_words, own_scales, own_zeros = 0;
  block.take_x([&] {
    // Reads of x queue behind words that were requested before them, so the other stages are requested only now.
    loader.template fetch<1 % V::kHalves>(ring_at + next(fill));
    if constexpr (V::kStages == 4) loader.template fetch<0>(ring_at + next(fill));
    if (job.flagged_quads > 0) flagged.prepare(block.n_block, block.split);
    const int own = block.lane % V::kTileLanes, upper = block.lane / V::kTileLanes * (4 * V::kWords);
    x = kept_address(block.lane_x() + first_run * (kWarpTiles * 32));
    starts = kept_address(block.starts + first_run * V::kTokens + block.lane % 4 * 2);
    own_words = kept_address(ring + 16 * own + upper);
    own_scales = kept_address(ring + V::kScalesAt + 16 * (own / 4) + upper);
    if constexpr (V::kZeros) own_zeros = kept_address(ring + V::kZerosAt + 4 * (own / 4));
  });

  for (int chunk = first_chunk; chunk < job.chunks; chunk += step) {
    ChunkSums<V> sums;
    for (int run = 0; run < runs; ++run) {
#pragma unroll
      for (int half = 0; half < V::kHalves; ++half) {
        cp_async_wait<V::kStages - 2>();
        __syncwarp();  // all lanes' copies of this stage have arrived, and all have read the stage before it
        const uint32_t stage = next(slot);
        uint32_t words[V::kTiles][V::kWords];
#pragma unroll
        for (int i = 0; i < V::kTiles; ++i) load_shared_words(words[i], own_words + stage + i * V::kTileBytes);
        if (half == 0)
          sums.start(starts + 4 * run * V::kTokens, own_scales + stage, own_zeros + stage, grouped, block.lane);
        if ((half + V::kStages - 1) % V::kHalves == 0)
          loader.template fetch<0>(ring_at + next(fill));
        else
          loader.template fetch<V::kHalves - 1>(ring_at + next(fill));
        sums.add_stage(words, x + (run * kWarpTiles + half * V::kTiles) * 32);
      }
      sums.end();
    }
    block.add_team(sums.sum, chunk, chunk != first_chunk);
  }
  cp_async_wait<0>();
  if (job.splits == 1) return;
  merge(job, block, flagged);
}

}  // namespace fewbit::cuda::marlin_rows
