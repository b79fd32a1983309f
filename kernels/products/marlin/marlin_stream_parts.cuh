#pragma once
// What the kernel of marlin_stream.cuh is put together from: the job, the walk of a warp over its words, and the ways
// in which warps and blocks wait for each other.
#include "kernels/device/barrier.cuh"
#include "kernels/device/grid_wait.cuh"
#include "kernels/device/launch.cuh"
#include "kernels/products/marlin/marlin_tile.cuh"

namespace fewbit::cuda {

constexpr int kWarpTiles = 8;                   // k-tiles of a warp: 128 values, the largest group
constexpr int kStageTiles = 4;                  // k-tiles of a stage of the ring: half of them
constexpr int kStreamWeights = 3;               // linears of one input in one launch
constexpr int kSumStride = marlin::kTileN + 4;  // floats from token to token, for the banks
constexpr size_t kStaticShared = 512;           // at most: what the kernels have besides the dynamic shared memory
constexpr int kQuads = marlin::kTileN / 4;      // of the outputs of a chunk

struct StreamWeight {
  MarlinSource w;
  const __nv_bfloat16* bias;  // [out] or null
  void* y;                    // [rows, out]
  bool add;                   // y += the product
  int end_chunk;              // one past its last run of 64 outputs, counted over all weights
};
struct StreamJob {
  StreamWeight weights[kStreamWeights];  // same bits, `in`, group, zero points or none
  const __nv_bfloat16* x;                // [rows, in]
  int rows, in;
  bool y_f32;
  int group_shift;     // log2 of the k-tiles of a group
  int chunks;          // over all weights
  int slices, parts;   // blocks along k; blocks along the chunks
  int passes;          // of kTokens rows
  int batch_shift;     // log2 of the chunks of a block whose sums wait together in shared memory to be added
  bool share_end;      // the slices are added by all blocks that have them, not by the last one alone
  float* partials;     // [passes, chunks, slices, kTokens, 64]
  uint32_t* counters;  // [passes * parts, 2], zero between launches
};

// Chunks are counted over all weights; the first of this one's.
__device__ __forceinline__ int first_chunk_of(const StreamJob& job, int weight) {
  return weight == 0 ? 0 : job.weights[weight - 1].end_chunk;
}

template <int kBits, bool kFine, bool kZeros>
struct StreamStage {
  static constexpr int kTileBytes = marlin::tile_words(kBits) * 4;
  static constexpr int kScaleBytes = 64 * 2, kZeroBytes = kZeros ? 64 * kBits / 8 : 0;
  static constexpr int kGroups = kFine ? 2 : 1;  // groups of 32 or more that can start in a stage
  static constexpr int kGroupBytes = kScaleBytes + kZeroBytes;
  static constexpr int kBytes = (kStageTiles * kTileBytes + kGroups * kGroupBytes + 127) / 128 * 128;  // whole lines
};

// Where a warp reads next: walks over (chunk, stage of its tiles).
template <int kBits, bool kFine, bool kZeros>
struct StreamFeeder {
  using Stage = StreamStage<kBits, kFine, kZeros>;
  const StreamJob& job;
  int tile0, tiles;  // first k-tile of the warp, and how many exist
  int lane;
  int weight = 0, chunk, end_chunk = 0;  // `end_chunk`: of the weight
  const uint32_t* words = nullptr;       // this lane's of tile0 and `chunk`
  const __half* scales = nullptr;        // this lane's of `chunk`, row 0; !kFine: of the warp's only group
  int row_words = 0;                     // from k-tile to k-tile
  bool has_scales;                       // this lane copies scales

  __device__ __forceinline__ StreamFeeder(const StreamJob& j, int first_tile, int first_chunk, int my_lane)
      : job(j),
        tile0(first_tile),
        tiles(min(kWarpTiles, max(0, j.in / marlin::kTileK - first_tile))),
        lane(my_lane),
        chunk(first_chunk),
        has_scales(j.weights[0].w.grouped() && my_lane < Stage::kScaleBytes / 16) {
    seat();
  }
  __device__ __forceinline__ void seat() {
    if (chunk >= job.chunks || tiles == 0) {
      chunk = job.chunks;
      return;
    }
    while (chunk >= job.weights[weight].end_chunk) ++weight;
    end_chunk = job.weights[weight].end_chunk;
    const MarlinSource& w = job.weights[weight].w;
    const int local = chunk - first_chunk_of(job, weight);
    row_words = w.out * kBits / 2;
    words = w.b + static_cast<int64_t>(tile0) * row_words + local * marlin::tile_words(kBits) + 4 * lane;
    scales = w.s + local * marlin::kTileN + 8 * lane;
    if (!kFine) scales += static_cast<int64_t>(tile0 >> job.group_shift) * w.out;
  }
  __device__ __forceinline__ void next_chunk() {
    chunk += job.parts;
    words += job.parts * marlin::tile_words(kBits);
    scales += job.parts * marlin::kTileN;
    if (chunk >= end_chunk) seat();
  }

  // Stage `part` of the tiles of `chunk`.
  __device__ __forceinline__ void fetch(uint8_t* to, int part) const {
    if (chunk >= job.chunks) return;
    const int first = part * kStageTiles;
    if (tiles == kWarpTiles)
      fetch_tiles<true>(to, first);
    else
      fetch_tiles<false>(to, first);
    if (kFine || part == 0) fetch_groups(to + kStageTiles * Stage::kTileBytes, tile0 + first);
  }
  template <bool kAll>
  __device__ __forceinline__ void fetch_tiles(uint8_t* to, int first) const {
    constexpr int kUnits = Stage::kTileBytes / 16;
#pragma unroll
    for (int i = 0; i < kStageTiles; ++i) {
      const bool valid = kAll || first + i < tiles;  // beyond: zeros, they meet zeros of x
      const uint32_t* from = words + (valid ? (first + i) * row_words : 0);
#pragma unroll
      for (int u = 0; u < kUnits / 32; ++u)
        cp_async16(to + i * Stage::kTileBytes + 16 * marlin::unit_position(lane + 32 * u, kBits), from + 128 * u,
                   valid);
    }
  }
  // Scales and zero points of the groups that start in a stage; those past the end repeat the last.
  __device__ __forceinline__ void fetch_groups(uint8_t* to, int tile) const {
    const MarlinSource& w = job.weights[weight].w;
#pragma unroll
    for (int i = 0; i < Stage::kGroups; ++i) {
      const int group = min(tile + 2 * i, w.k_tiles() - 1) >> job.group_shift;
      if (has_scales)
        cp_async16(to + i * Stage::kGroupBytes + 16 * lane,
                   kFine ? scales + static_cast<int64_t>(group) * w.out : scales);
      if (kZeros && lane < Stage::kZeroBytes / 16) {
        const int local = chunk - first_chunk_of(job, weight);
        cp_async16(
            to + i * Stage::kGroupBytes + Stage::kScaleBytes + 16 * lane,
            w.z + static_cast<int64_t>(group) * (w.out * kBits / 32) + local * (Stage::kZeroBytes / 4) + 4 * lane);
      }
    }
  }
};

// A lane's words of a k-tile.
template <int kBits>
__device__ __forceinline__ void lane_words(uint32_t (&out)[kBits], const uint8_t* tile, int lane) {
#pragma unroll
  for (int p = 0; p < kBits / 4; ++p) {
    const uint4 unit =
        *reinterpret_cast<const uint4*>(tile + 16 * marlin::unit_position(lane * (kBits / 4) + p, kBits));
    out[4 * p] = unit.x;
    out[4 * p + 1] = unit.y;
    out[4 * p + 2] = unit.z;
    out[4 * p + 3] = unit.w;
  }
}

__device__ __forceinline__ void add_quad(float4& a, float4 b) {
  a.x += b.x;
  a.y += b.y;
  a.z += b.z;
  a.w += b.w;
}

// Four neighbouring outputs of one row: from `quad` of a chunk on. Made early where it can be, and kept short: every
// launch ends with it.
struct OutputQuad {
  int weight, col;
  int64_t at;

  OutputQuad() = default;
  __device__ __forceinline__ OutputQuad(int weight, int col, int64_t at) : weight(weight), col(col), at(at) {}
  __device__ __forceinline__ OutputQuad(const StreamJob& job, int chunk, int quad, int row) : weight(0) {
    while (chunk >= job.weights[weight].end_chunk) ++weight;
    col = (chunk - first_chunk_of(job, weight)) * marlin::kTileN + 4 * quad;
    at = static_cast<int64_t>(row) * job.weights[weight].w.out + col;
  }
  __device__ __forceinline__ void store(const StreamJob& job, float4 v) const {
    const StreamWeight& of = job.weights[weight];
    if (!of.w.grouped()) {
      float* out[4] = {&v.x, &v.y, &v.z, &v.w};
#pragma unroll
      for (int k = 0; k < 4; ++k) *out[k] *= __half2float(of.w.s[marlin::scale_column(col + k, false)]);
    }
    if (of.bias) {
      const __nv_bfloat16* bias = of.bias + col;
      add_quad(v, {__bfloat162float(bias[0]), __bfloat162float(bias[1]), __bfloat162float(bias[2]),
                   __bfloat162float(bias[3])});
    }
    if (job.y_f32) {
      auto* y = reinterpret_cast<float4*>(static_cast<float*>(of.y) + at);
      if (of.add) add_quad(v, *y);
      *y = v;
    } else {
      auto* y = reinterpret_cast<uint2*>(static_cast<__nv_bfloat16*>(of.y) + at);
      if (of.add) {
        const uint2 before = *y;
        add_quad(v, {__uint_as_float(before.x << 16), __uint_as_float(before.x & 0xffff0000u),
                     __uint_as_float(before.y << 16), __uint_as_float(before.y & 0xffff0000u)});
      }
      *y = {pack_bf16(v.x, v.y), pack_bf16(v.z, v.w)};
    }
  }
};

// The sums that a slice leaves of a chunk: [kTokens, 64] as quads.
template <int kTokens>
__device__ __forceinline__ float4* partial_of(const StreamJob& job, int pass, int chunk, int slice) {
  return reinterpret_cast<float4*>(job.partials) +
         static_cast<int64_t>((pass * job.chunks + chunk) * job.slices + slice) * (kTokens * kQuads);
}
// To the L2, to stay there: words that stream through would drive it out to memory before it is read.
__device__ __forceinline__ void store_partial(float4* to, float4 v) {
  uint64_t keep;
  asm volatile("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(keep));
  asm volatile("st.global.L2::cache_hint.v4.f32 [%0], {%1, %2, %3, %4}, %5;" ::"l"(to), "f"(v.x), "f"(v.y), "f"(v.z),
               "f"(v.w), "l"(keep)
               : "memory");
}

// The last of the blocks that met zeroes the counters.
__device__ __forceinline__ void leave_meeting(uint32_t* counter, uint32_t expected) {
  if (threadIdx.x == 0 && atomicAdd(counter + 1, 1u) == expected - 1) counter[0] = counter[1] = 0;
}

// Adds the slices of the part's chunks for `tokens` rows from row0 on, in the order of k: of `sharers` blocks that do
// so together, the `own`-th. Every trip to the L2 takes its time, so a thread asks for the quads of kAtOnce slices at
// once.
template <int kTokens, int kAtOnce>
__device__ __forceinline__ void add_slices(const StreamJob& job, int pass, int part, int row0, int tokens, int own,
                                           int sharers) {
  constexpr int kTogether = 2;
  const int of_chunk = tokens * kQuads, quads = (job.chunks - part + job.parts - 1) / job.parts * of_chunk;
  const int stride = sharers * blockDim.x;
  for (int first = own * blockDim.x + threadIdx.x; first < quads; first += kTogether * stride) {
    int chunk[kTogether], at[kTogether];
    const float4* from[kTogether];
    float4 v[kTogether] = {};
#pragma unroll
    for (int i = 0; i < kTogether; ++i) {
      const int e = min(first + i * stride, quads - 1);
      chunk[i] = e / of_chunk;
      at[i] = e - chunk[i] * of_chunk;
      chunk[i] = part + chunk[i] * job.parts;
      from[i] = partial_of<kTokens>(job, pass, chunk[i], 0) + at[i];
    }
    for (int s0 = 0; s0 < job.slices; s0 += kAtOnce) {
      float4 some[kAtOnce][kTogether];
#pragma unroll
      for (int s = 0; s < kAtOnce; ++s)
#pragma unroll
        for (int i = 0; i < kTogether; ++i)
          if (s0 + s < job.slices) some[s][i] = __ldcg(from[i] + (s0 + s) * (kTokens * kQuads));
#pragma unroll
      for (int s = 0; s < kAtOnce; ++s)
#pragma unroll
        for (int i = 0; i < kTogether; ++i)
          if (s0 + s < job.slices) add_quad(v[i], some[s][i]);
    }
#pragma unroll
    for (int i = 0; i < kTogether; ++i)
      if (first + i * stride < quads) OutputQuad(job, chunk[i], at[i] % kQuads, row0 + at[i] / kQuads).store(job, v[i]);
  }
}
// Once a block has left the sums of its slice: the part's outputs, by add(own, sharers) in all blocks that share the
// part, of which this is the `own`-th, or in the last one alone. prepare(own, sharers) comes before, in the time of
// waiting.
template <class Prepare, class Add>
__device__ __forceinline__ void end_part(const StreamJob& job, int pass, int part, int slice, const Prepare& prepare,
                                         const Add& add) {
  __shared__ bool last;
  uint32_t* counter = job.counters + 2 * (pass * job.parts + part);
  const bool all = job.share_end;
  __syncthreads();  // what this block wrote before is seen by whoever sees it counted
  if (threadIdx.x == 0) {
    if (all)
      count_arrival(counter);
    else
      last = arrives_last(counter, job.slices);
  }
  const int own = all ? slice : 0, sharers = all ? job.slices : 1;
  prepare(own, sharers);
  if (all && threadIdx.x == 0) await_count(counter, job.slices);
  __syncthreads();
  if (!all && !last) return;
  add(own, sharers);
  if (all) leave_meeting(counter, job.slices);
}
// Scratch memory and counters for the sums of `rows` rows (of a pass) in chunks of `outputs`, and who adds them.
template <int kTokens>
void set_meeting(CudaState& s, StreamJob& job, int rows, int threads, int outputs = marlin::kTileN) {
  constexpr int kQuadsOfLastBlock = 4;  // for each thread: the last block adds no more than these alone
  FEWBIT_ASSERT(2 * job.passes * job.parts <= CudaState::kCounters);
  job.counters = s.counters;
  job.partials = s.scratch_of<float>(static_cast<int64_t>(job.passes) * job.slices * kTokens * job.chunks * outputs);
  const int most = (job.chunks + job.parts - 1) / job.parts;
  job.share_end = most * rows * (outputs / 4) * job.slices > kQuadsOfLastBlock * threads;
}

// 4 bits, groups of 128 and more: the kernel of marlin_rows.cuh, 16 rows at a time. False where it finds no way to cut
// the product.
bool marlin_rows(CudaState& s, StreamJob job);

}  // namespace fewbit::cuda
