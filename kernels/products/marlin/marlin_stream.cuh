#pragma once
// y = x W^T on Marlin words as they lie, for few rows of x: the weights are read once, at the speed of memory. 4 bits
// in groups of 128 and more come here for one row; marlin_rows.cuh has the rest of those. A block keeps a slice of k
// for as long as it lives and walks over runs of 64 outputs ("chunks"); each of its warps keeps 128 values of that
// slice ("its tiles"), with x of them at hand in registers or shared memory, so that x is read once a block. A warp
// pulls its words through a ring of its own by asynchronous copies, without a barrier, and multiplies them on the
// tensor cores as the 16-row operand (marlin_stream_sums.cuh). The warps' sums are added in shared memory, a batch of
// chunks at a time; blocks leave theirs in scratch memory, and the last of those that have the slices of the same
// chunks adds them, always in the order of k, or all of them do together where that is much. Blocks that wait for each
// other must be resident together: plan_stream() asks for no more than one a multiprocessor.
#include <type_traits>

#include "kernels/products/marlin/marlin_stream_sums.cuh"

namespace fewbit::cuda {

// The block's place in the grid (passes x slices x parts, the pass fastest, so that blocks which read the
// same words run together) and its sums in shared memory. V: a StreamVariant.
template <class V>
struct StreamBlock {
  static constexpr int kTokens = V::kTokens, kBuffers = V::kBuffers;
  const StreamJob& job;
  int lane, warp, warps;
  int pass, slice, part;
  int row0, tokens;
  int turn;                // the warps take turns at additions, where there is work for few only
  float* sums;             // [kBuffers, warps, chunks of a batch, tokens, kSumStride]
  uint64_t *full, *empty;  // [kBuffers] barriers

  __device__ __forceinline__ explicit StreamBlock(const StreamJob& j)
      : job(j),
        lane(threadIdx.x % 32),
        warp(threadIdx.x / 32),
        warps(blockDim.x / 32),
        pass(blockIdx.x % j.passes),
        slice(blockIdx.x / j.passes % j.slices),
        part(blockIdx.x / (j.passes * j.slices)),
        row0(pass * kTokens),
        tokens(min(kTokens, j.rows - row0)),
        turn(warp) {}

  // log2 of the chunks of a batch.
  __device__ __forceinline__ int shift() const { return V::kMostBatchShift > 0 ? job.batch_shift : 0; }
  __device__ __forceinline__ float* sums_of(int batch, int of_warp) const {
    return sums + (((batch % kBuffers * warps + of_warp) * tokens * kSumStride) << shift());
  }
  // Leaves the warp's sums of the block's `unit`-th chunk. The buffer is free once all warps have added the batch that
  // had it before: each lane waits for that before it writes the first chunk of the next.
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
  // Adds the warps' sums of a batch of `count` chunks, once all have left theirs.
  __device__ __forceinline__ void add_warps(int batch, int count) {
    const float* all = sums_of(batch, 0);
    const int stride = (tokens * kSumStride) << shift();
    barrier_wait(full + batch % kBuffers, batch / kBuffers % 2);
    for (unsigned e = 32 * turn + lane; e < count * tokens * kQuads; e += 32 * warps) {
      const int row = e / kQuads, quad = e % kQuads;
      int kept = 0, token = row;
      if constexpr (V::kMostBatchShift > 0)
        for (; token >= tokens; token -= tokens) ++kept;
      const float* from = all + row * kSumStride + 4 * quad;
      float4 v = *reinterpret_cast<const float4*>(from);
#pragma unroll 4
      for (int w = 1; w < warps; ++w) add_quad(v, *reinterpret_cast<const float4*>(from + w * stride));
      const int chunk = part + ((batch << shift()) + kept) * job.parts;
      store_partial(partial_of<kTokens>(job, pass, chunk, slice) + token * kQuads + quad, v);
    }
    if (++turn == warps) turn = 0;
    __syncwarp();
    if (lane < kArrivingLanes) barrier_arrive(empty + batch % kBuffers);
  }
};

// Variants of the kernel: kTokens 8, 16 or 32; kFine: groups end inside of a warp's k. Of 4 bits and not kFine only
// kTokens 1, with zero points of 8: marlin_rows.cuh has the rest.
template <int kBits_, int kTokens_, bool kFine_, bool kZeros_>
struct StreamVariant {
  static constexpr int kBits = kBits_, kTokens = kTokens_, kColumnTiles = (kTokens + 7) / 8;
  static constexpr bool kFine = kFine_, kZeros = kZeros_;
  static constexpr bool kDigits = kTokens == 1;
  static constexpr int kMaxWarps = kDigits || kTokens > 16 ? 12 : 16;  // digits: 12 with longer rings do as much as 16
  static constexpr int kStages = kDigits ? 4 : 3;
  // Buffers for sums. One: a batch of up to 2^kMostBatchShift chunks, added when the next begins. Two: a chunk each,
  // added one chunk late.
  static constexpr int kBuffers = kDigits || kTokens > 16 ? 1 : 2;
  static constexpr int kMostBatchShift = kBuffers == 1 ? 3 : 0;
  // tiles whose words are read before the first is used
  static constexpr int kAhead = kFine && kTokens == 16 ? 2 : 16 / kBits;
  using Stage = StreamStage<kBits, kFine, kZeros>;
  using Columns = std::conditional_t<kDigits, DigitColumns, StreamColumns<kColumnTiles>>;
  using Sums = std::conditional_t<kDigits, DigitSums, StreamSums<kColumnTiles>>;
  static constexpr int kRingBytes = kStages * Stage::kBytes;   // of a warp
  static constexpr int kSumBytes = kBuffers * kSumStride * 4;  // of a warp and a token, for a batch of one chunk
  static constexpr int kTokenBytes = kSumBytes + Columns::kTokenBytes;
};

template <class V>
__global__ void __launch_bounds__(32 * V::kMaxWarps, 1) marlin_stream_kernel(const __grid_constant__ StreamJob job) {
  using Stage = typename V::Stage;
  constexpr int kParts = kWarpTiles / kStageTiles;
  extern __shared__ __align__(128) uint8_t shared[];  // rings off a line cost every copy a pass more
  __shared__ uint64_t barriers[2 * V::kBuffers];
  allow_successor();
  StreamBlock<V> block(job);
  const int lane = block.lane, tokens = block.tokens;
  uint8_t* ring = shared + block.warp * V::kRingBytes;
  uint8_t* sums = shared + block.warps * V::kRingBytes;
  block.sums = reinterpret_cast<float*>(sums);
  block.full = barriers;
  block.empty = barriers + V::kBuffers;
  uint8_t* x_sh =
      sums + tokens * (((block.warps * V::kSumBytes) << block.shift()) + block.warp * V::Columns::kTokenBytes);

  StreamFeeder<V::kBits, V::kFine, V::kZeros> feeder(job, (block.slice * block.warps + block.warp) * kWarpTiles,
                                                     block.part, lane);
  int fill = 0;  // the slot that is filled next
  const auto fetch = [&](int part) {
    feeder.fetch(ring + fill * Stage::kBytes, part);
    cp_async_commit();
    if (part == kParts - 1) feeder.next_chunk();
    fill = fill + 1 == V::kStages ? 0 : fill + 1;
  };
  // Before the copies: after them racecheck takes the two for one another, whose addresses share a register.
  if (threadIdx.x < 2 * V::kBuffers) barrier_init(barriers + threadIdx.x, kArrivingLanes * block.warps);
#pragma unroll
  for (int i = 0; i < V::kStages - 1; ++i) fetch(i % kParts);
  __syncthreads();

  await_predecessor();
  const typename V::Columns x(x_sh, job, block.row0, tokens, feeder.tile0, feeder.tiles, lane);

  const bool grouped = job.weights[0].w.grouped();
  const bool has_scales = grouped && feeder.tiles > 0;  // else they stay zero: nothing was fetched
  StreamGroup<V::kBits, V::kZeros> group(grouped ? 0.f : 1.f);
  int slot = 0, unit = 0;  // unit: chunks that this block has done
  const int shift = block.shift(), mask = (1 << shift) - 1;
  for (int chunk = block.part; chunk < job.chunks; chunk += job.parts, ++unit) {
    typename V::Sums sum, part;
    if constexpr (V::kFine) sum.clear();
#pragma unroll
    for (int p = 0; p < kParts; ++p) {
      cp_async_wait<V::kStages - 2>();
      __syncwarp();  // all lanes' copies of this stage are there, and all have read the stage before
      const uint8_t* stage = ring + slot * Stage::kBytes;
      slot = slot + 1 == V::kStages ? 0 : slot + 1;
      constexpr int kAhead = V::kAhead;
      uint32_t words[kAhead][V::kBits];
#pragma unroll
      for (int i = 0; i < kAhead; ++i) lane_words<V::kBits>(words[i], stage + i * Stage::kTileBytes, lane);
      if (!V::kFine && p == 0) {
        group.read(stage + kStageTiles * Stage::kTileBytes, has_scales, lane);
        part.start(x, group);
      }
      fetch((p + V::kStages - 1) % kParts);
#pragma unroll
      for (int i = 0; i < kStageTiles; ++i) {
        if (V::kFine && i % 2 == 0) {  // a group may start here
          group.read(stage + kStageTiles * Stage::kTileBytes + i / 2 * Stage::kGroupBytes, has_scales, lane);
          part.start(x, group);
        }
        part.add_tile(x, p * kStageTiles + i, words[i % kAhead], group);
        if (i + kAhead < kStageTiles)
          lane_words<V::kBits>(words[i % kAhead], stage + (i + kAhead) * Stage::kTileBytes, lane);
        if constexpr (V::kFine)
          if (i % 2 == 1) sum.add(part, group);
      }
      if (V::kBuffers == 1 && p == 0 && unit > 0 && (unit & mask) == 0)
        block.add_warps((unit >> shift) - 1, 1 << shift);
    }
    if constexpr (V::kFine) {
      block.leave(sum, x, unit);
    } else {
      part.finish(x, group);
      block.leave(part, x, unit);
    }
    if ((unit & mask) == mask) block.close_batch(unit >> shift);
    // no warp waits for one that is less than a chunk behind
    if (V::kBuffers == 2 && unit > 0) block.add_warps(unit - 1, 1);
  }
  const int last = unit - 1;
  if ((last & mask) != mask) block.close_batch(last >> shift);
  block.add_warps(last >> shift, (last & mask) + 1);
  cp_async_wait<0>();
  const auto prepare = [](int, int) {};
  end_part(job, block.pass, block.part, block.slice, prepare, [&](int own, int sharers) {
    add_slices<V::kTokens, V::kDigits ? 8 : 2>(job, block.pass, block.part, block.row0, tokens, own, sharers);
  });
}

}  // namespace fewbit::cuda
