#pragma once
// y = x W^T on Marlin words as they lie, for few rows of x: the weights are read once, at the speed of
// memory. A block keeps a slice of k for as long as it lives and walks over runs of 64 outputs ("chunks");
// each of its warps keeps 128 values of that slice ("its tiles"), with x of them at hand in shared memory,
// so that x is read once a block. A warp pulls its words through a ring of its own by asynchronous copies,
// without a barrier, turns them into bf16 fragments and multiplies them on the tensor cores as the 16-row
// operand, 8 activations being the columns. Sums of a group are f32 and meet their scale
// in f32. After each chunk the warps' sums are added in shared memory; blocks that have other slices of the
// same chunks leave theirs in scratch memory, meet at a counter and share the final addition, always in the
// order of k. All blocks of the grid must be resident together: plan_stream() asks for no more than one a
// multiprocessor.
#include "kernels/marlin_stream_parts.cuh"

namespace fewbit::cuda {

// What a lane knows of the group at hand.
template <int kBits, bool kZeros>
struct StreamGroup {
  alignas(16) __half scales[8];
  LaneZeros<kBits> zeros;

  __device__ __forceinline__ StreamGroup() {
#pragma unroll
    for (int i = 0; i < 8; ++i) scales[i] = __half(0.f);
    zeros.set_middle();
  }
  __device__ __forceinline__ void read(const uint8_t* from, bool has_scales, int lane) {
    if (has_scales)
      *reinterpret_cast<uint4*>(scales) =
          *reinterpret_cast<const uint4*>(from + 2 * marlin::fragment_scale(lane, 0, true));
    if constexpr (kZeros) zeros.set_words(reinterpret_cast<const uint32_t*>(from + marlin::kTileN * 2), lane);
  }
  __device__ __forceinline__ float zero(int index) const {  // 4 bits
    return kZeros ? __uint_as_float(zeros.v[index] << 16) - 128.f : 8.f;
  }
};

// The block's place in the grid (passes x slices x parts, the pass fastest, so that blocks which read the
// same words run together) and its sums in shared memory.
template <int kTokens, int kBuffers>
struct StreamBlock {
  static constexpr int kQuads = marlin::kTileN / 4;
  const StreamJob& job;
  int lane, warp, warps;
  int pass, slice, part;
  int row0, tokens;
  float* sums;             // [kBuffers, warps, tokens, kSumStride]
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
        tokens(min(kTokens, j.rows - row0)) {}

  __device__ __forceinline__ float4* partial(int from_slice, int token, int chunk, int quad) const {
    const int64_t row = static_cast<int64_t>(pass * job.slices + from_slice) * kTokens + token;
    return reinterpret_cast<float4*>(job.partials) + (row * job.chunks + chunk) * kQuads + quad;
  }
  // Leaves the warp's sums of the block's `unit`-th chunk.
  template <class Sums>
  __device__ __forceinline__ void leave(const Sums& v, int unit) const {
    const int buffer = unit % kBuffers;
    barrier_wait(empty + buffer, (unit / kBuffers % 2) ^ 1);
    v.store(sums + (buffer * warps + warp) * tokens * kSumStride, tokens, lane);
    __syncwarp();
    if (lane < kArrivingLanes) barrier_arrive(full + buffer);
  }
  // Adds the warps' sums of the `unit`-th chunk, once all have left theirs.
  __device__ __forceinline__ void add_warps(int unit) const {
    const int buffer = unit % kBuffers, chunk = part + unit * job.parts;
    barrier_wait(full + buffer, unit / kBuffers % 2);
    const float* all = sums + buffer * warps * tokens * kSumStride;
    int first = warp + unit % warps;  // they take turns where there is work for few only
    if (first >= warps) first -= warps;
    for (int e = 32 * first + lane; e < tokens * kQuads; e += 32 * warps) {
      const int token = e / kQuads, quad = e % kQuads;
      const float* from = all + token * kSumStride + 4 * quad;
      float4 v = *reinterpret_cast<const float4*>(from);
#pragma unroll 4
      for (int w = 1; w < warps; ++w)
        add_quad(v, *reinterpret_cast<const float4*>(from + w * tokens * kSumStride));
      if (job.slices == 1)
        store_quad(job, chunk, quad, row0 + token, v);
      else
        __stcg(partial(slice, token, chunk, quad), v);
    }
    __syncwarp();
    if (lane < kArrivingLanes) barrier_arrive(empty + buffer);
  }
  // Adds the slices of the part's chunks; the blocks that met share the work.
  __device__ __forceinline__ void add_slices() const {
    const int chunks = (job.chunks - part + job.parts - 1) / job.parts;
    for (int e = slice * blockDim.x + threadIdx.x; e < chunks * tokens * kQuads;
         e += job.slices * blockDim.x) {
      const int quad = e % kQuads, token = e / kQuads % tokens,
                chunk = part + e / kQuads / tokens * job.parts;
      float4 v = __ldcg(partial(0, token, chunk, quad));
#pragma unroll 8
      for (int s = 1; s < job.slices; ++s) add_quad(v, __ldcg(partial(s, token, chunk, quad)));
      store_quad(job, chunk, quad, row0 + token, v);
    }
  }
};

// Variants of the kernel. Where registers allow, small ones leave half of them to the kernels beside it.
template <int kBits_, int kTokens_, bool kFine_, bool kZeros_>
struct StreamVariant {
  static constexpr int kBits = kBits_, kTokens = kTokens_;
  static constexpr bool kFine = kFine_, kZeros = kZeros_;
  static constexpr bool kRaised = kBits == 4 && !kFine;  // see raised_fragment()
  static constexpr int kStages = 3;
  static constexpr int kMaxWarps = kTokens <= 16 ? 16 : 12;
  static constexpr int kBlocks = kRaised && kTokens == 8 ? 2 : 1;
  static constexpr int kBuffers = kTokens <= 16 ? 2 : 1;  // chunks whose sums lie in shared memory
  using Stage = StreamStage<kBits, kFine, kZeros>;
  static constexpr int kRingBytes = kStages * Stage::kBytes;  // of a warp
  // Of the warp and one token: its sums and its share of x.
  static constexpr int kTokenBytes = kBuffers * kSumStride * 4 + StreamColumns::kBytes;
};

template <class V>
__global__ void __launch_bounds__(32 * V::kMaxWarps, V::kBlocks)
    marlin_stream_kernel(const __grid_constant__ StreamJob job) {
  using Stage = typename V::Stage;
  constexpr int kColumns = V::kTokens / 8;  // mma column tiles
  constexpr int kParts = kWarpTiles / kStageTiles;
  extern __shared__ __align__(16) uint8_t shared[];
  __shared__ uint64_t barriers[2 * V::kBuffers];
  allow_successor();
  StreamBlock<V::kTokens, V::kBuffers> block(job);
  const int lane = block.lane, tokens = block.tokens;
  uint8_t* ring = shared + block.warp * V::kRingBytes;
  uint8_t* x_sh = shared + block.warps * V::kRingBytes;
  block.sums = reinterpret_cast<float*>(x_sh + block.warps * tokens * StreamColumns::kBytes);
  x_sh += block.warp * tokens * StreamColumns::kBytes;
  block.full = barriers;
  block.empty = barriers + V::kBuffers;

  StreamFeeder<V::kBits, V::kFine, V::kZeros> feeder(
      job, (block.slice * block.warps + block.warp) * kWarpTiles, block.part, lane);
  int fill = 0;  // the slot that is filled next
  const auto fetch = [&](int part) {
    feeder.fetch(ring + fill * Stage::kBytes, part);
    cp_async_commit();
    if (part == kParts - 1) feeder.next_chunk();
    fill = fill + 1 == V::kStages ? 0 : fill + 1;
  };
#pragma unroll
  for (int i = 0; i < V::kStages - 1; ++i) fetch(i % kParts);
  if (threadIdx.x < 2 * V::kBuffers) barrier_init(barriers + threadIdx.x, kArrivingLanes * block.warps);
  __syncthreads();

  await_predecessor();
  StreamColumns::load(x_sh, job, block.row0, tokens, feeder.tile0, feeder.tiles, lane);
  const uint8_t* x[kColumns];
#pragma unroll
  for (int c = 0; c < kColumns; ++c) x[c] = StreamColumns::of_lane(x_sh, c, tokens, lane);
  float x_sums[kColumns][2];
  if (V::kRaised) sum_columns(x_sums, x, lane);

  StreamGroup<V::kBits, V::kZeros> group;
  const bool grouped = job.weights[0].w.grouped();
  const bool has_scales = grouped && feeder.tiles > 0;  // else they stay zero: nothing was fetched
  int slot = 0, unit = 0;                               // unit: chunks that this block has done
  for (int chunk = block.part; chunk < job.chunks; chunk += job.parts, ++unit) {
    StreamSums<kColumns> sum, part;
    if (!V::kRaised) part.clear();
    if (V::kFine) sum.clear();
#pragma unroll
    for (int p = 0; p < kParts; ++p) {
      cp_async_wait<V::kStages - 2>();
      __syncwarp();  // all lanes' copies of this stage are there, and all have read the stage before
      const uint8_t* stage = ring + slot * Stage::kBytes;
      slot = slot + 1 == V::kStages ? 0 : slot + 1;
      constexpr int kAhead = 16 / V::kBits;  // tiles whose words are read before the first is used
      uint32_t words[kAhead][V::kBits];
#pragma unroll
      for (int i = 0; i < kAhead; ++i) lane_words<V::kBits>(words[i], stage + i * Stage::kTileBytes, lane);
      if (!V::kFine && p == 0) {
        group.read(stage + kStageTiles * Stage::kTileBytes, has_scales, lane);
        if (V::kRaised) part.start(x_sums, [&](int i) { return group.zero(i); });
      }
      fetch((p + V::kStages - 1) % kParts);
#pragma unroll
      for (int i = 0; i < kStageTiles; ++i) {
        if (V::kFine && i % 2 == 0)  // a group may start here
          group.read(stage + kStageTiles * Stage::kTileBytes + i / 2 * Stage::kGroupBytes, has_scales, lane);
        uint2 pairs[kColumns];
#pragma unroll
        for (int c = 0; c < kColumns; ++c) pairs[c] = StreamColumns::pairs(x[c], p * kStageTiles + i);
#pragma unroll
        for (int j = 0; j < marlin::kSubTiles; ++j) {
          uint32_t a[4];
          if constexpr (V::kRaised)
            raised_fragment(a, words[i % kAhead][j]);
          else
            fragment<V::kBits>(a, words[i % kAhead], j, group.zeros);
#pragma unroll
          for (int c = 0; c < kColumns; ++c) mma_bf16(part.v[j][c], a, pairs[c].x, pairs[c].y);
        }
        if (i + kAhead < kStageTiles)
          lane_words<V::kBits>(words[i % kAhead], stage + (i + kAhead) * Stage::kTileBytes, lane);
        if (V::kFine && i % 2 == 1) sum.close_group(part, group.scales);
      }
    }
    if (!V::kFine && grouped) part.scale(group.scales);
    // With two buffers the sums added are those of the chunk before, which are there by now: no warp waits
    // for one that is less than a chunk behind.
    block.leave(V::kFine ? sum : part, unit);
    if (unit >= V::kBuffers - 1) block.add_warps(unit - (V::kBuffers - 1));
  }
  if (V::kBuffers == 2) block.add_warps(unit - 1);
  cp_async_wait<0>();
  if (job.slices == 1) return;
  meet(job.counters + 2 * (block.pass * job.parts + block.part), job.slices);
  block.add_slices();
}

}  // namespace fewbit::cuda
