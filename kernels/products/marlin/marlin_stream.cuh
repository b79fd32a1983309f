#pragma once
// The kernel for few rows that reads each weight once: y = x W^T on Marlin words as they lie, for 8 bits, for 4 bits in
// groups of 32 and 64, and for one row of 4 bits in larger groups (marlin_rows.cuh has more rows of those).
//
// A block has one split of k for as long as it lives and visits chunks of 64 outputs (marlin_split_k.cuh). Each of its
// warps has 128 values of that split and keeps x of them in registers or shared memory, so that a block reads x once.
// The warp pulls its words through a ring of its own (marlin_stream_loader.cuh) and multiplies them on the tensor cores
// as the 16-row operand (marlin_stream_warp.cuh). The warps' sums are added in shared memory, a batch of chunks at a
// time, and those of the blocks in device memory (marlin_stream_reduce.cuh), always in the order of k. Blocks that wait
// for each other must be resident together, so the launch asks for at most one block a multiprocessor.
#include <type_traits>

#include "kernels/device/barrier.cuh"
#include "kernels/products/marlin/marlin_stream_loader.cuh"
#include "kernels/products/marlin/marlin_stream_reduce.cuh"
#include "kernels/products/marlin/marlin_stream_warp.cuh"

namespace fewbit::cuda::marlin_stream {

// A block's place in the grid (passes x splits x n_blocks, the pass fastest, so that blocks which read the same words
// run together) and its warps' sums in shared memory. V: a Variant.
template <class V>
struct Block {
  static constexpr int kTokens = V::kTokens, kBuffers = V::kBuffers;
  const Job& job;
  int lane, warp, warps;
  int pass, split, n_block;
  int row0, tokens;
  int turn;                // the warps take turns at adding where there is work for few of them only
  float* sums;             // [kBuffers, warps, chunks of a batch, tokens, kSumStride]
  uint64_t *full, *empty;  // [kBuffers] barriers

  __device__ __forceinline__ explicit Block(const Job& j)
      : job(j),
        lane(threadIdx.x % 32),
        warp(threadIdx.x / 32),
        warps(blockDim.x / 32),
        pass(blockIdx.x % j.passes),
        split(blockIdx.x / j.passes % j.splits),
        n_block(blockIdx.x / (j.passes * j.splits)),
        row0(pass * kTokens),
        tokens(min(kTokens, j.rows - row0)),
        turn(warp) {}

  // log2 of the chunks of a batch.
  __device__ __forceinline__ int shift() const { return V::kMostBatchShift > 0 ? job.batch_shift : 0; }
  __device__ __forceinline__ float* sums_of(int batch, int of_warp) const {
    return sums + (((batch % kBuffers * warps + of_warp) * tokens * kSumStride) << shift());
  }
  // Stores this warp's sums of the block's `unit`-th chunk. A buffer is free again once all warps have added the batch
  // that had it: every lane waits for that before it writes the first chunk of the next batch.
  template <class Sums, class Columns>
  __device__ __forceinline__ void leave(const Sums& v, const Columns& x, int unit) const {
    const int batch = unit >> shift(), kept = unit & ((1 << shift()) - 1);
    if (kept == 0) barrier_wait(empty + batch % kBuffers, (batch / kBuffers % 2) ^ 1);
    v.store(x, sums_of(batch, warp) + kept * tokens * kSumStride, tokens, lane);
  }
  __device__ __forceinline__ void close_batch(int batch) const {
    __syncwarp();
    if (lane < kArrivingLanes) barrier_arrive(full + batch % kBuffers);
  }
  // Adds the warps' sums of a batch of `count` chunks, once all warps have stored theirs.
  __device__ __forceinline__ void add_warps(int batch, int count) {
    const float* all = sums_of(batch, 0);
    const int stride = (tokens * kSumStride) << shift();
    barrier_wait(full + batch % kBuffers, batch / kBuffers % 2);
    for (unsigned e = 32 * turn + lane; e < count * tokens * kChunkQuads; e += 32 * warps) {
      const int row = e / kChunkQuads, quad = e % kChunkQuads;
      int kept = 0, token = row;
      if constexpr (V::kMostBatchShift > 0)
        for (; token >= tokens; token -= tokens) ++kept;
      const float* from = all + row * kSumStride + 4 * quad;
      float4 v = *reinterpret_cast<const float4*>(from);
#pragma unroll 4
      for (int w = 1; w < warps; ++w) add_quad(v, *reinterpret_cast<const float4*>(from + w * stride));
      const int chunk = n_block + ((batch << shift()) + kept) * job.n_blocks;
      store_partial(partial_sums<kTokens>(job, pass, chunk, split) + token * kChunkQuads + quad, v);
    }
    if (++turn == warps) turn = 0;
    __syncwarp();
    if (lane < kArrivingLanes) barrier_arrive(empty + batch % kBuffers);
  }
};

// What a kernel is compiled for.
//   kTokens   rows of x at a time: 8, 16 or 32; 1 for 4 bits in groups of 128 and more with zero points of 8
//   kFine     groups end inside of a warp's 128 values of k (groups of 32 and 64)
template <int kBits_, int kTokens_, bool kFine_, bool kZeros_>
struct Variant {
  static constexpr int kBits = kBits_, kTokens = kTokens_, kColumnTiles = (kTokens + 7) / 8;
  static constexpr bool kFine = kFine_, kZeros = kZeros_;
  static constexpr bool kOneRow = kTokens == 1;  // by limbs (limb_product.cuh)
  // By registers: 12 warps of more than 16 rows. One row: 12 warps with longer rings do as much as 16.
  static constexpr int kMaxWarps = kOneRow || kTokens > 16 ? 12 : 16;
  static constexpr int kStages = kOneRow ? 4 : 3;  // of a warp's ring
  // Buffers for sums. One: a batch of up to 2^kMostBatchShift chunks, added when the next batch begins. Two: one chunk
  // each, added one chunk late.
  static constexpr int kBuffers = kOneRow || kTokens > 16 ? 1 : 2;
  static constexpr int kMostBatchShift = kBuffers == 1 ? 3 : 0;
  // k-tiles whose words are read before the first of them is used; fewer where registers are short.
  static constexpr int kAhead = kFine && kTokens == 16 ? 2 : 16 / kBits;
  using Stage = RingStage<kBits, kFine, kZeros>;
  using Columns = std::conditional_t<kOneRow, LimbColumns, Bf16Columns<kColumnTiles>>;
  using Sums = std::conditional_t<kOneRow, LimbSums, Bf16Sums<kColumnTiles>>;
  static constexpr int kRingBytes = kStages * Stage::kBytes;   // of a warp
  static constexpr int kSumBytes = kBuffers * kSumStride * 4;  // of a warp and a token, for a batch of one chunk
  static constexpr int kTokenBytes = kSumBytes + Columns::kTokenBytes;
};

// Long because: the state of the ring and the sums live in registers across all phases of a chunk, whose loops are
// unrolled into one body.
template <class V>
__global__ void __launch_bounds__(32 * V::kMaxWarps, 1) marlin_stream_kernel(const __grid_constant__ Job job) {
  using Stage = typename V::Stage;
  constexpr int kChunkStages = kWarpTiles / kStageTiles;
  extern __shared__ __align__(128) uint8_t shared[];  // rings that begin within a 128-byte line cost an L1 pass a copy
  __shared__ uint64_t barriers[2 * V::kBuffers];
  allow_successor();
  Block<V> block(job);
  const int lane = block.lane, tokens = block.tokens;
  uint8_t* ring = shared + block.warp * V::kRingBytes;
  uint8_t* sums = shared + block.warps * V::kRingBytes;
  block.sums = reinterpret_cast<float*>(sums);
  block.full = barriers;
  block.empty = barriers + V::kBuffers;
  uint8_t* x_sh =
      sums + tokens * (((block.warps * V::kSumBytes) << block.shift()) + block.warp * V::Columns::kTokenBytes);

  Loader<V::kBits, V::kFine, V::kZeros> loader(job, (block.split * block.warps + block.warp) * kWarpTiles,
                                               block.n_block, lane);
  int fill = 0;  // the slot that is filled next
  const auto fetch = [&](int stage) {
    loader.fetch(ring + fill * Stage::kBytes, stage);
    cp_async_commit();
    if (stage == kChunkStages - 1) loader.next_chunk();
    fill = fill + 1 == V::kStages ? 0 : fill + 1;
  };
  // Before the copies: behind them compute-sanitizer's racecheck mistakes one for the other, since their addresses
  // share a register.
  if (threadIdx.x < 2 * V::kBuffers) barrier_init(barriers + threadIdx.x, kArrivingLanes * block.warps);
#pragma unroll
  for (int i = 0; i < V::kStages - 1; ++i) fetch(i % kChunkStages);
  __syncthreads();

  await_predecessor();
  const typename V::Columns x(x_sh, job, block.row0, tokens, loader.tile0, loader.tiles, lane);

  const bool grouped = job.weights[0].w.grouped();
  const bool has_scales = grouped && loader.tiles > 0;  // a warp without k-tiles copied none: they stay zero
  GroupScales<V::kBits, V::kZeros> group(grouped ? 0.f : 1.f);
  int slot = 0, unit = 0;  // unit: how many chunks this block has done
  const int shift = block.shift(), mask = (1 << shift) - 1;
  for (int chunk = block.n_block; chunk < job.chunks; chunk += job.n_blocks, ++unit) {
    typename V::Sums sum, of_group;
    if constexpr (V::kFine) sum.clear();
#pragma unroll
    for (int p = 0; p < kChunkStages; ++p) {
      cp_async_wait<V::kStages - 2>();
      __syncwarp();  // all lanes' copies of this stage have arrived, and all have read the stage before it
      const uint8_t* stage = ring + slot * Stage::kBytes;
      slot = slot + 1 == V::kStages ? 0 : slot + 1;
      constexpr int kAhead = V::kAhead;
      uint32_t words[kAhead][V::kBits];
#pragma unroll
      for (int i = 0; i < kAhead; ++i) lane_words<V::kBits>(words[i], stage + i * Stage::kTileBytes, lane);
      if (!V::kFine && p == 0) {
        group.read(stage + kStageTiles * Stage::kTileBytes, has_scales, lane);
        of_group.start(x, group);
      }
      fetch((p + V::kStages - 1) % kChunkStages);
#pragma unroll
      for (int i = 0; i < kStageTiles; ++i) {
        if (V::kFine && i % 2 == 0) {  // a group may start here
          group.read(stage + kStageTiles * Stage::kTileBytes + i / 2 * Stage::kGroupBytes, has_scales, lane);
          of_group.start(x, group);
        }
        of_group.add_tile(x, p * kStageTiles + i, words[i % kAhead], group);
        if (i + kAhead < kStageTiles)
          lane_words<V::kBits>(words[i % kAhead], stage + (i + kAhead) * Stage::kTileBytes, lane);
        if constexpr (V::kFine)
          if (i % 2 == 1) sum.add(of_group, group);
      }
      if (V::kBuffers == 1 && p == 0 && unit > 0 && (unit & mask) == 0)
        block.add_warps((unit >> shift) - 1, 1 << shift);
    }
    if constexpr (V::kFine) {
      block.leave(sum, x, unit);
    } else {
      of_group.finish(x, group);
      block.leave(of_group, x, unit);
    }
    if ((unit & mask) == mask) block.close_batch(unit >> shift);
    // one chunk late, so that a warp less than a chunk ahead does not wait
    if (V::kBuffers == 2 && unit > 0) block.add_warps(unit - 1, 1);
  }
  const int last = unit - 1;
  if ((last & mask) != mask) block.close_batch(last >> shift);
  block.add_warps(last >> shift, (last & mask) + 1);
  cp_async_wait<0>();
  const auto prepare = [](int, int) {};
  merge_splits(job, block.pass, block.n_block, block.split, prepare, [&](int own, int mergers) {
    add_splits<V::kTokens, V::kOneRow ? 8 : 2>(job, block.pass, block.n_block, block.row0, tokens, own, mergers);
  });
}

}  // namespace fewbit::cuda::marlin_stream
