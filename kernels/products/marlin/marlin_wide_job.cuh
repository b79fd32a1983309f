#pragma once
// The job of the kernel of marlin_wide.cuh, what it is compiled for, and which block has which tiles: a stream-K tile
// scheduler.
#include "kernels/device/hopper.cuh"
#include "kernels/device/mma.cuh"
#include "kernels/products/marlin/marlin_tile.cuh"

namespace fewbit::cuda::marlin_wide {

constexpr int kWeights = 3;                 // linears of one x in one launch
constexpr int kBoxDepth = 64;               // values of k of a box of x: a line of the 128-byte swizzle
constexpr int kConsumers = 2 * 128;         // threads of the two warpgroups that multiply
constexpr int kThreads = kConsumers + 128;  // and of the one whose warps produce their stages
// Numbered barriers of a block: of each consumer warpgroup (this number and the next), of both, and of both with the
// warp that signals that their partial sums are stored (signal_partials()): those of a work range that is not the
// block's last, and those of its last.
constexpr int kWarpgroupBarrier = 1, kConsumerBarrier = 3, kSignalBarrier = 4, kLastSignalBarrier = 5;
constexpr int kBandRows = 1024;  // rows of x whose tiles are computed one after another, so that x stays in the L2

struct Weight {
  MarlinSource w;
  const __nv_bfloat16* bias;  // [out] or null
  void* y;                    // [rows, out]
  bool add;                   // y += the product
  int end_tile;               // one past its last tile along the outputs, counted over all weights
};
struct Job {
  Weight weights[kWeights];  // alike in bits, `in`, group, and whether there are zero points
  int rows;
  bool y_f32;
  int group_shift;           // log2 of the k-tiles of a group
  int steps;                 // stages that a tile takes for all of k
  int out_tiles, row_tiles;  // tiles along the outputs, over all weights; along the rows
  int shared_tiles;          // how many tiles, the first ones, are cut along k (stream-K)
  float* partials;           // [grid, 2, 4 * S::kPartialQuads]; flagged words if S::kFew; unused if shared_tiles == 0
  uint32_t* counters;        // [shared_tiles, S::kCluster, 2], zero between launches; unused if S::kFew
};

// Tensor maps of what the copy engine moves in boxes: x [rows, in], the words of each weight as [in / 16, out / 64,
// words of a tile], and y [rows, out] where it is bf16, both in subtiles of results and in octets of tokens.
struct Maps {
  CUtensorMap x, words[kWeights], y_subtile[kWeights], y_octet[kWeights];
};

// The stream-K plan: how many clusters run, and how many tiles they share. It makes the longest work range of a cluster
// short, counting what sharing costs in stages: `merge` where tiles are cut into equal parts, which end once, and
// `two_merges` for other cuts, which end twice. Either all tiles are cut into the same number of ranges, or whole
// rounds of tiles stay uncut and the last two rounds, or the only one, are laid end to end and cut into equal ranges.
struct Plan {
  int clusters = 0, shared_tiles = 0;
  int64_t cost = 0;  // in stages
};
inline Plan make_plan(int most, int64_t tiles, int steps, int merge, int two_merges) {
  const int64_t rounds = (tiles + most - 1) / most, work = tiles * steps;
  Plan best{static_cast<int>(tiles < most ? tiles : most), 0, rounds * steps};
  const auto offer = [&](int64_t clusters, int64_t shared, int64_t cost) {
    if (cost < best.cost) best = {static_cast<int>(clusters), static_cast<int>(shared), cost};
  };
  for (int64_t splits = 2; splits * tiles <= most && splits <= steps; ++splits)
    offer(splits * tiles, tiles, (steps + splits - 1) / splits + merge);
  if (work >= most) offer(most, rounds > 1 ? tiles - (rounds - 2) * most : tiles, work / most + two_merges);
  return best;
}

// A work range: the stages [from, to) of a tile.
struct Range {
  int tile, from, to;
};

// What the kernel is compiled for. The kCluster blocks of a cluster share a tile: each has its part of the outputs, and
// x is copied once for all of them. A consumer warpgroup has kOperands times 64 outputs. kFine: groups of 32, which end
// inside of a stage. kFew: few rows of x in groups of 128, where most tiles are shared. Stages have twice the depth
// then, because a stage's borders cost as much as a fifth of its products, and partial sums are flagged words.
template <int kBits_, int kTokens_, int kOuts_, bool kZeros_, bool kFine_, bool kFew_ = false>
struct Shape {
  static constexpr int kBits = kBits_, kTokens = kTokens_;
  static constexpr int kOuts = kOuts_;  // of a block
  static constexpr bool kZeros = kZeros_, kFine = kFine_, kFew = kFew_;
  static constexpr int kStageTiles = kFew ? 8 : 4;  // k-tiles of a stage
  static constexpr int kStageDepth = kStageTiles * marlin::kTileK;
  static constexpr int kCluster = kTokens == 256 ? 2 : 1;
  static constexpr int kTileOuts = kOuts * kCluster;
  static constexpr int kChunks = kOuts / marlin::kTileN;
  static constexpr int kOperands = kOuts / 2 / 64;
  static constexpr int kBand = kBandRows / kTokens;                  // tiles
  static constexpr int kChunkBytes = marlin::tile_words(kBits) * 4;  // of a k-tile
  static constexpr int kTileBytes = kChunks * kChunkBytes;           // of a k-tile, all outputs
  static constexpr int kBoxes = kStageDepth / kBoxDepth, kBoxOfXBytes = kTokens * kBoxDepth * 2;
  static constexpr int kXBytes = kBoxes * kBoxOfXBytes;
  static constexpr int kWordBytes = kStageTiles * kTileBytes;
  static constexpr int kGroups = kFine ? 2 : 1;  // groups that can begin in a stage
  static constexpr int kScaleBytes = kOuts * 2, kZeroBytes = kZeros ? kOuts * kBits / 8 : 0;  // of a group
  static constexpr int kStageBytes = kXBytes + kWordBytes + kGroups * (kScaleBytes + kZeroBytes);
  // As many as there is room for beside the results.
  static constexpr int kStages = kFew         ? (kOuts == 128 ? (kBits == 4 ? 8 : 6) : (kBits == 4 ? 6 : 4))
                                 : kBits == 4 ? (kTokens == 256   ? 5
                                                 : kTokens == 128 ? 7
                                                                  : 12)
                                              : (kTokens == 256   ? 4
                                                 : kTokens == 128 ? 5
                                                 : kTokens == 64  ? 8
                                                                  : 9);
  // What sharing tiles costs, in stages: equal parts, other cuts; and the time of a stage against another shape's.
  static constexpr int kMerge = kFew ? 6 : 8, kTwoMerges = kFew ? 9 : 16;
  static constexpr int kStageCost = kOuts == 256 ? 13 : 7;
  // The epilogue takes the results of a warpgroup through shared memory a subtile at a time: its outputs of so many
  // octets (eight neighbouring rows of x).
  static constexpr int kOctets = kTokens / 8, kSubtileOctets = 8 / kOperands;
  static_assert(kSubtileOctets <= kOctets);
  static constexpr int kBoxBytes = 8 * marlin::kTileN * 2;
  static constexpr int kPlaneBytes = kSubtileOctets * kBoxBytes, kSubtileBytes = kOperands * kPlaneBytes;
  static constexpr int kSubtiles = kTokens <= 64 ? 1 : 2;  // buffers for them, used in turn
  // Sums of a tile, in quads (float4): of a thread, and of a block.
  static constexpr int kQuads = kOperands * kOctets;
  static constexpr int kPartialQuads = kQuads * kConsumers;
  static_assert(16 * kPartialQuads <=
                kStages * (kXBytes + kWordBytes));  // a block's own sums of a shared tile lie where its stages were
  static constexpr int kAlign = 1024;               // of a tile in the 128-byte swizzle
  static constexpr int kShared = kAlign + kStages * kStageBytes + 2 * kSubtiles * kSubtileBytes;
  static_assert(kShared <= 226 * 1024);  // of 227 KiB; the barriers lie beside it
};

// The number of the block's cluster in the grid, and the block's rank in it.
template <class S>
__device__ __forceinline__ int cluster_index() {
  return static_cast<int>(blockIdx.x) / S::kCluster;
}
template <class S>
__device__ __forceinline__ int cluster_rank() {
  return static_cast<int>(blockIdx.x) % S::kCluster;
}

// The work ranges of a cluster in order: first whole tiles, then its part of the shared ones.
template <class S>
struct TileScheduler {
  const Job& job;
  int unit, end_unit;  // stages of the shared tiles, counted over all of them
  int tile, tiles;

  __device__ __forceinline__ static int clusters() { return static_cast<int>(gridDim.x) / S::kCluster; }
  // Without signs, since a division with them takes twice as long; launch_shape() sees to the range.
  __device__ __forceinline__ static int divided(int a, int b) {
    return static_cast<int>(static_cast<uint32_t>(a) / static_cast<uint32_t>(b));
  }
  __device__ __forceinline__ static int unit_of(const Job& job, int cluster) {
    return divided(job.shared_tiles * job.steps * cluster, clusters());
  }
  // The cluster that has a unit.
  __device__ __forceinline__ static int cluster_of(const Job& job, int unit) {
    return divided((unit + 1) * clusters() - 1, job.shared_tiles * job.steps);
  }
  __device__ __forceinline__ explicit TileScheduler(const Job& j)
      : job(j),
        unit(unit_of(j, cluster_index<S>())),
        end_unit(unit_of(j, cluster_index<S>() + 1)),
        tile(j.shared_tiles + cluster_index<S>()),
        tiles(j.out_tiles * j.row_tiles) {}
  __device__ __forceinline__ bool next(Range& range) {
    if (tile < tiles) {
      range = {tile, 0, job.steps};
      tile += clusters();
      return true;
    }
    if (unit >= end_unit) return false;
    range.tile = divided(unit, job.steps);
    range.from = unit - range.tile * job.steps;
    range.to = min(job.steps, range.from + end_unit - unit);
    unit += range.to - range.from;
    return true;
  }
};

// The clusters that share a tile, as seen by one of them that has done its work range of it. Those for which that range
// was their last wait for each other and add the partial sums, some of the tokens each, in the order of k. At most one
// cluster goes on to another tile instead: the last in the order of k.
template <class S>
struct SharedTile {
  int first, count;  // the number of the first cluster, and how many there are
  int adding;        // how many of them, the first ones, add
  int own;           // this cluster's place among them
  int begin, end;    // octets of tokens that it adds

  SharedTile() = default;
  __device__ __forceinline__ SharedTile(const Job& job, int tile, int octets) {
    using Scheduler = TileScheduler<S>;
    const int last_unit = (tile + 1) * job.steps - 1, last = Scheduler::cluster_of(job, last_unit);
    first = Scheduler::cluster_of(job, tile * job.steps);
    count = last - first + 1;
    adding = count - (Scheduler::unit_of(job, last + 1) > last_unit + 1);
    own = cluster_index<S>() - first;
    begin = end = 0;
    if (!adds()) return;
    begin = Scheduler::divided(octets * own, adding);
    end = Scheduler::divided(octets * (own + 1), adding);
  }
  __device__ __forceinline__ bool adds() const { return own < adding; }
  // True for that one of two clusters which adds alone: its sums stay in registers.
  __device__ __forceinline__ bool ends() const { return count == 2 && adding == 1 && own == 0; }
};

// The position of the block's part of a tile.
template <class S>
struct TilePosition {
  int weight;  // index
  int chunk;   // first chunk of 64 outputs
  int chunks;  // how many exist, up to S::kChunks
  int row;     // first row of x

  __device__ __forceinline__ TilePosition(const Job& job, int tile) {
    int out_tile = tile;
    row = 0;
    if (job.row_tiles > 1) {
      const int band = tile / (S::kBand * job.out_tiles), at = tile - band * S::kBand * job.out_tiles;
      const int width = min(S::kBand, job.row_tiles - band * S::kBand);
      out_tile = at / width;
      row = (band * S::kBand + at - out_tile * width) * S::kTokens;
    }
    weight = 0;
    while (out_tile >= job.weights[weight].end_tile) ++weight;
    if (weight > 0) out_tile -= job.weights[weight - 1].end_tile;
    chunk = (out_tile * S::kCluster + cluster_rank<S>()) * S::kChunks;
    chunks = max(0, min(S::kChunks, job.weights[weight].w.out / marlin::kTileN - chunk));
  }
};

}  // namespace fewbit::cuda::marlin_wide
