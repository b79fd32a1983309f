#pragma once
// How a warp of marlin_stream.cuh brings its weights into shared memory: a ring of its own, filled by asynchronous
// copies, so that no warp waits for another.
#include "kernels/products/marlin/marlin_split_k.cuh"

namespace fewbit::cuda::marlin_stream {

using namespace marlin_split_k;

constexpr int kStageTiles = 4;  // k-tiles of a stage of the ring: half of a warp's

// A stage of the ring: the words of kStageTiles k-tiles, then scales and zero points of the groups that start in them.
template <int kBits, bool kFine, bool kZeros>
struct RingStage {
  static constexpr int kTileBytes = marlin::tile_words(kBits) * 4;
  static constexpr int kScaleBytes = 64 * 2, kZeroBytes = kZeros ? 64 * kBits / 8 : 0;
  static constexpr int kGroups = kFine ? 2 : 1;  // groups of 32 values or more that can start in a stage
  static constexpr int kGroupBytes = kScaleBytes + kZeroBytes;
  static constexpr int kBytes = (kStageTiles * kTileBytes + kGroups * kGroupBytes + 127) / 128 * 128;  // whole lines
};

// Where a warp reads next; it visits (chunk, stage of the warp's k-tiles) in order.
template <int kBits, bool kFine, bool kZeros>
struct Loader {
  using Stage = RingStage<kBits, kFine, kZeros>;
  const Job& job;
  int tile0, tiles;  // first k-tile of the warp, and how many exist
  int lane;
  int weight = 0, chunk, end_chunk = 0;  // end_chunk: of the weight
  const uint32_t* words = nullptr;       // this lane's, of tile0 and `chunk`
  const __half* scales = nullptr;        // this lane's, of `chunk`: of group 0, or if !kFine of the warp's only group
  int row_words = 0;                     // from k-tile to k-tile
  bool has_scales;                       // this lane copies scales

  __device__ __forceinline__ Loader(const Job& j, int first_tile, int first_chunk, int my_lane)
      : job(j),
        tile0(first_tile),
        tiles(min(kWarpTiles, max(0, j.in / marlin::kTileK - first_tile))),
        lane(my_lane),
        chunk(first_chunk),
        has_scales(j.weights[0].w.grouped() && my_lane < Stage::kScaleBytes / 16) {
    seek();
  }
  __device__ __forceinline__ void seek() {
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
    chunk += job.n_blocks;
    words += job.n_blocks * marlin::tile_words(kBits);
    scales += job.n_blocks * marlin::kTileN;
    if (chunk >= end_chunk) seek();
  }

  // Copies a stage of `chunk` to `to`.
  __device__ __forceinline__ void fetch(uint8_t* to, int stage) const {
    if (chunk >= job.chunks) return;
    const int first = stage * kStageTiles;
    if (tiles == kWarpTiles)
      fetch_tiles<true>(to, first);
    else
      fetch_tiles<false>(to, first);
    if (kFine || stage == 0) fetch_groups(to + kStageTiles * Stage::kTileBytes, tile0 + first);
  }
  template <bool kAll>
  __device__ __forceinline__ void fetch_tiles(uint8_t* to, int first) const {
    constexpr int kUnits = Stage::kTileBytes / 16;
#pragma unroll
    for (int i = 0; i < kStageTiles; ++i) {
      const bool valid = kAll || first + i < tiles;  // past the end: zeros, which meet zeros of x
      const uint32_t* from = words + (valid ? (first + i) * row_words : 0);
#pragma unroll
      for (int u = 0; u < kUnits / 32; ++u)
        cp_async16(to + i * Stage::kTileBytes + 16 * marlin::unit_position(lane + 32 * u, kBits), from + 128 * u,
                   valid);
    }
  }
  // Copies the scales and zero points of the groups that start in a stage; past the last group it is repeated.
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

// This lane's words of a k-tile in shared memory.
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

}  // namespace fewbit::cuda::marlin_stream
