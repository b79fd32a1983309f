#pragma once
// What the kernel of marlin_wide.cuh is put together from: the job, the walk of a block over its tiles, the
// side that fills the stages, and a lane's share of the weights.
#include "kernels/device/hopper.cuh"
#include "kernels/device/mma.cuh"
#include "kernels/products/marlin/marlin_tile.cuh"

namespace fewbit::cuda {

constexpr int kWideWeights = 3;  // linears of one x in one launch
constexpr int kWideOuts = 256;   // outputs of a tile
constexpr int kWideTiles = 4;    // k-tiles of a stage
constexpr int kWideDepth = kWideTiles * marlin::kTileK;
constexpr int kWideMultiplying = 2 * 128;             // threads of the two warpgroups that multiply
constexpr int kWideThreads = kWideMultiplying + 128;  // and one that feeds them
// Numbered barriers of a block: of a warpgroup (this and the next), of both, and of both with the warp that announces
// their sums, of a run that is not their last and of the last.
constexpr int kWideGroupMeets = 1, kWideMeet = 3, kWideLeftFirst = 4, kWideLeftLast = 5;
constexpr int kWideBandRows = 1024;  // rows of x that are worked on together: they stay in the L2

struct WideWeight {
  MarlinSource w;
  const __nv_bfloat16* bias;  // [out] or null
  void* y;                    // [rows, out]
  bool add;                   // y += the product
  int end_tile;               // one past its last tile of outputs, counted over all weights
};
struct WideJob {
  WideWeight weights[kWideWeights];  // 4 bits; the same `in`, group, zero points or none
  int rows;
  bool y_f32;
  int group_shift;           // log2 of the k-tiles of a group
  int steps;                 // stages of a tile
  int out_tiles, row_tiles;  // tiles along the outputs, over all weights; along the rows
  int shared_tiles;          // the first tiles: cut along k
  float* partials;           // [grid, 2, 4 * S::kPartQuads]; unused where shared_tiles == 0
  uint32_t* counters;        // [shared_tiles, S::kCluster, 2], zero between launches
};

// What the copy engine moves in boxes: x [rows, in], the words of each weight as [in / 16, out / 64,
// 128], and y [rows, out], unless that is f32: slices of results and octets of tokens of them.
struct WideMaps {
  CUtensorMap x, words[kWideWeights], y_slice[kWideWeights], y_octet[kWideWeights];
};

// How many clusters, and how many tiles they share: what makes the longest run shortest, a meeting counted as kMeeting
// stages, and as much again where runs end in the middle of tiles. Fewer tiles than clusters: each tile for itself, cut
// in equal parts; more: whole rounds, or the last one or two rounds laid end to end and cut into equal runs.
struct WidePlan {
  int clusters = 0, shared_tiles = 0;
};
inline WidePlan plan_wide(int most, int64_t tiles, int steps) {
  constexpr int kMeeting = 8, kTwoMeetings = 2 * kMeeting;
  const int64_t rounds = (tiles + most - 1) / most, work = tiles * steps;
  WidePlan best{static_cast<int>(tiles < most ? tiles : most), 0};
  int64_t least = rounds * steps;
  const auto offer = [&](int64_t clusters, int64_t shared, int64_t cost) {
    if (cost >= least) return;
    least = cost;
    best = {static_cast<int>(clusters), static_cast<int>(shared)};
  };
  for (int64_t parts = 2; parts * tiles <= most && parts <= steps; ++parts)
    offer(parts * tiles, tiles, (steps + parts - 1) / parts + kMeeting);
  if (work >= most) offer(most, rounds > 1 ? tiles - (rounds - 2) * most : tiles, work / most + kTwoMeetings);
  return best;
}

// Stages first of a tile and one past the last.
struct WideRun {
  int tile, from, to;
};

// kCluster blocks share a tile: each has its part of the outputs, and a copy of x serves all of them. A warpgroup has
// kOperands times 64 outputs. kFine: groups end inside of a stage.
template <int kTokens_, bool kZeros_, bool kFine_>
struct WideShape {
  static constexpr int kTokens = kTokens_;
  static constexpr bool kZeros = kZeros_, kFine = kFine_;
  static constexpr int kCluster = kTokens == 256 ? 2 : 1;
  static constexpr int kOuts = kWideOuts / kCluster;  // of a block
  static constexpr int kChunks = kOuts / marlin::kTileN;
  static constexpr int kOperands = kOuts / 2 / 64;
  static constexpr int kBand = kWideBandRows / kTokens;          // tiles
  static constexpr int kChunkBytes = marlin::tile_words(4) * 4;  // of a k-tile
  static constexpr int kTileBytes = kChunks * kChunkBytes;       // of a k-tile, all outputs
  static constexpr int kXBytes = kTokens * kWideDepth * 2;
  static constexpr int kWordBytes = kWideTiles * kTileBytes;
  static constexpr int kGroups = kFine ? 2 : 1;                                       // that can begin in a stage
  static constexpr int kScaleBytes = kOuts * 2, kZeroBytes = kZeros ? kOuts / 2 : 0;  // of a group
  static constexpr int kStageBytes = kXBytes + kWordBytes + kGroups * (kScaleBytes + kZeroBytes);
  static constexpr int kStages = kTokens == 256 ? 5 : kTokens == 128 ? 7 : 12;
  // A slice of the results of a warpgroup, which leaves through shared memory at a time: its outputs of so many octets
  // of tokens.
  static constexpr int kOctets = kTokens / 8, kSliceOctets = 8 / kOperands;
  static constexpr int kBoxBytes = 8 * marlin::kTileN * 2;
  static constexpr int kPlaneBytes = kSliceOctets * kBoxBytes, kSliceBytes = kOperands * kPlaneBytes;
  static constexpr int kSlices = kTokens <= 64 ? 1 : 2;  // in shared memory, in turn
  // Sums of a tile, in fours of a lane.
  static constexpr int kQuads = kOperands * kOctets;
  static constexpr int kPartQuads = kQuads * kWideMultiplying;
  static_assert(16 * kPartQuads <= kStages * (kXBytes + kWordBytes));  // own sums lie where stages were
  static constexpr int kAlign = 1024;                                  // of a swizzled tile
  static constexpr int kShared = kAlign + kStages * kStageBytes + 2 * kSlices * kSliceBytes;
};

// The block's cluster, counted through the grid, and the block's place in it.
template <class S>
__device__ __forceinline__ int wide_cluster() {
  return static_cast<int>(blockIdx.x) / S::kCluster;
}
template <class S>
__device__ __forceinline__ int wide_rank() {
  return static_cast<int>(blockIdx.x) % S::kCluster;
}

// The runs of a cluster, in order: whole tiles, then its part of the shared ones.
template <class S>
struct WideWalk {
  const WideJob& job;
  int unit, end_unit;  // stages of the shared tiles, counted through
  int tile, tiles;

  __device__ __forceinline__ static int clusters() { return static_cast<int>(gridDim.x) / S::kCluster; }
  __device__ __forceinline__ static int unit_of(const WideJob& job, int cluster) {
    return static_cast<int>(static_cast<int64_t>(job.shared_tiles) * job.steps * cluster / clusters());
  }
  // The cluster that has a unit.
  __device__ __forceinline__ static int cluster_of(const WideJob& job, int unit) {
    return static_cast<int>((static_cast<int64_t>(unit + 1) * clusters() - 1) / (job.shared_tiles * job.steps));
  }
  __device__ __forceinline__ explicit WideWalk(const WideJob& j)
      : job(j),
        unit(unit_of(j, wide_cluster<S>())),
        end_unit(unit_of(j, wide_cluster<S>() + 1)),
        tile(j.shared_tiles + wide_cluster<S>()),
        tiles(j.out_tiles * j.row_tiles) {}
  __device__ __forceinline__ bool next(WideRun& run) {
    if (tile < tiles) {
      run = {tile, 0, job.steps};
      tile += clusters();
      return true;
    }
    if (unit >= end_unit) return false;
    run.tile = unit / job.steps;
    run.from = unit - run.tile * job.steps;
    run.to = min(job.steps, run.from + end_unit - unit);
    unit += run.to - run.from;
    return true;
  }
};

// The clusters that share a tile, when one of them has done its run of it: those whose runs are their last wait for
// each other and add the sums, a share of the tokens each, in the order of k; the one that goes on to another tile, if
// any, is the last of them in that order.
template <class S>
struct WideMeeting {
  int first, count;  // clusters
  int adding;        // of them, the first ones
  int own;           // this cluster among them
  int begin, end;    // octets of tokens that it adds

  __device__ __forceinline__ WideMeeting(const WideJob& job, int tile, int octets) {
    using Walk = WideWalk<S>;
    const int last_unit = (tile + 1) * job.steps - 1, last = Walk::cluster_of(job, last_unit);
    first = Walk::cluster_of(job, tile * job.steps);
    count = last - first + 1;
    adding = count - (Walk::unit_of(job, last + 1) > last_unit + 1);
    own = wide_cluster<S>() - first;
    begin = end = 0;
    if (!adds()) return;
    begin = octets * own / adding;
    end = octets * (own + 1) / adding;
  }
  __device__ __forceinline__ bool adds() const { return own < adding; }
  // Of two the one that adds alone: its sums stay where they are.
  __device__ __forceinline__ bool ends() const { return count == 2 && adding == 1 && own == 0; }
};

// Where the block's part of a tile lies.
template <class S>
struct WidePlace {
  int weight;  // index
  int chunk;   // first run of 64 outputs
  int chunks;  // how many exist, up to S::kChunks
  int row;     // first row of x

  __device__ __forceinline__ WidePlace(const WideJob& job, int tile) {
    const int band = tile / (S::kBand * job.out_tiles), at = tile - band * S::kBand * job.out_tiles;
    const int width = min(S::kBand, job.row_tiles - band * S::kBand);
    int out_tile = at / width;
    row = (band * S::kBand + at - out_tile * width) * S::kTokens;
    weight = 0;
    while (out_tile >= job.weights[weight].end_tile) ++weight;
    if (weight > 0) out_tile -= job.weights[weight - 1].end_tile;
    chunk = (out_tile * S::kCluster + wide_rank<S>()) * S::kChunks;
    chunks = max(0, min(S::kChunks, job.weights[weight].w.out / marlin::kTileN - chunk));
  }
};

#ifdef FEWBIT_SM90A

// Shared memory of a block: slices of results of both warpgroups, and arrays over the stages.
template <class S>
struct WideMemory {
  uint8_t *slices, *x, *words, *scales, *zeros;
  __device__ __forceinline__ explicit WideMemory(uint8_t* shared) {
    slices = shared + (S::kAlign - shared_address(shared) % S::kAlign) % S::kAlign;
    x = slices + 2 * S::kSlices * S::kSliceBytes;
    words = x + S::kStages * S::kXBytes;
    scales = words + S::kStages * S::kWordBytes;
    zeros = scales + S::kStages * S::kGroups * S::kScaleBytes;
  }
};

// The side that fills the stages: a warp each for x, the words, and scales with zero points, so that none of
// them holds up the others. Each announces its own bytes. `copy(place, step, slot, barrier)` is called by all
// lanes; `barrier`: the slot's address.
constexpr int kWideFeeders = 3;
template <class S, class Copy>
__device__ __forceinline__ void feed(const WideJob& job, uint64_t* full, uint64_t* empty, Copy&& copy) {
  const uint32_t full_at = kept_address(full), empty_at = kept_address(empty);
  WideWalk<S> walk(job);
  WideRun run;
  int slot = 0;
  uint32_t phase = 1;  // the first round finds all stages empty
  while (walk.next(run)) {
    const WidePlace<S> place(job, run.tile);
    for (int step = run.from; step < run.to; ++step) {
      barrier_await(empty_at + 8 * slot, phase);
      copy(place, step, slot, full_at + 8 * slot);
      if (++slot == S::kStages) {
        slot = 0;
        phase ^= 1;
      }
    }
  }
}
template <class S>
__device__ __forceinline__ void feed_x(const WideJob& job, const WideMaps& maps, const WideMemory<S>& memory,
                                       uint64_t* full, uint64_t* empty) {
  const uint32_t to = kept_address(memory.x);
  feed<S>(job, full, empty, [&](const WidePlace<S>& place, int step, int slot, uint32_t barrier) {
    if (!elected()) return;
    barrier_expect(barrier, S::kXBytes);
    if constexpr (S::kCluster == 1)
      bulk_copy_box(to + slot * S::kXBytes, &maps.x, step * kWideDepth, place.row, barrier);
    else  // each block copies a part for all of them
      bulk_copy_box_to_all<S::kCluster>(to + slot * S::kXBytes + wide_rank<S>() * (S::kXBytes / S::kCluster), &maps.x,
                                        step * kWideDepth, place.row + wide_rank<S>() * (S::kTokens / S::kCluster),
                                        barrier);
  });
}
template <class S>
__device__ __forceinline__ void feed_words(const WideJob& job, const WideMaps& maps, const WideMemory<S>& memory,
                                           uint64_t* full, uint64_t* empty) {
  const uint32_t to = kept_address(memory.words);
  feed<S>(job, full, empty, [&](const WidePlace<S>& place, int step, int slot, uint32_t barrier) {
    if (!elected()) return;
    barrier_expect(barrier, S::kWordBytes);
    bulk_copy_box(to + slot * S::kWordBytes, &maps.words[place.weight], 0, place.chunk, step * kWideTiles, barrier);
  });
}
template <class S>
__device__ __forceinline__ void feed_groups(const WideJob& job, const WideMemory<S>& memory, uint64_t* full,
                                            uint64_t* empty) {
  const uint32_t to_scales = kept_address(memory.scales), to_zeros = kept_address(memory.zeros);
  feed<S>(job, full, empty, [&](const WidePlace<S>& place, int step, int slot, uint32_t barrier) {
    const MarlinSource& w = job.weights[place.weight].w;
    const int scale_bytes = w.grouped() ? place.chunks * 128 : 0, zero_bytes = S::kZeros ? place.chunks * 32 : 0;
    if (!elected()) return;
    barrier_expect(barrier, S::kGroups * (scale_bytes + zero_bytes));
#pragma unroll
    for (int i = 0; i < S::kGroups; ++i) {
      const int64_t group = min(step * kWideTiles + 2 * i, w.k_tiles() - 1) >> job.group_shift;
      const int at = slot * S::kGroups + i;
      if (scale_bytes)
        bulk_copy(to_scales + at * S::kScaleBytes, w.s + group * w.out + place.chunk * marlin::kTileN, scale_bytes,
                  barrier);
      if (S::kZeros)
        bulk_copy(to_zeros + at * S::kZeroBytes, w.z + group * (w.out / 8) + place.chunk * 8, zero_bytes, barrier);
    }
  });
}

// A lane's part of the block's tile. Of a k-tile of 64 outputs, which lies as four sub-tiles of 16 with one word
// a lane each, a warp takes kOperands: which, depends on the lane, so that all banks of shared memory are read at once.
template <class S>
struct WideLane {
  static constexpr int kWarps = 4 / S::kOperands;  // of a run of 64 outputs
  int lane, group, warp;                           // of the warpgroup
  int chunk;                                       // run of 64 outputs among the block's
  int sub;                                         // first of its sub-tiles

  __device__ __forceinline__ WideLane() {
    lane = threadIdx.x % 32;
    warp = threadIdx.x / 32 % 4;
    group = threadIdx.x / 128;
    chunk = S::kChunks / 2 * group + warp / kWarps;
    sub = S::kOperands * ((warp ^ lane / 8) % kWarps);
  }
  // The tile's output in row 8 r + lane / 4 of the warp's m-th operand.
  __device__ __forceinline__ int output(int m, int r) const {
    return marlin::kTileN * chunk + 16 * (sub + m) + 8 * r + lane / 4;
  }
};

// Scales and zero points of a lane's outputs, each twice side by side, and the weights they make of codes.
//
// With zero points: 128 + code, which is 0x4300 | code as bf16, less 128 + zero, times scale, is rounded once. Without
// them one instruction does that: bits 0 to 7 of a bf16 whose others are zero count as an integer of units of 2^-133
// (subnormals, and the normal numbers of the least exponent, which have the same unit), so a code at bit 0 or 4 is code
// * 2^-133 or 2^-129, and code * scale - 8 * scale is a multiplication and addition with one rounding, 8 * scale being
// exact. Scales up to 2^16 times 2^133 are too large for a bf16: the weights are left 2^kWideDown times as large, and
// the sums multiplied by the inverse.
constexpr int kWideDown = -22;  // power of two
template <class S>
struct WideGroup {
  static constexpr int kScales = S::kZeros ? 1 : 2;
  uint32_t scale[S::kOperands][2][kScales], zero[S::kOperands][2];  // [operand][upper eight rows][code at bit 4]

  // From the word that holds an operand's two f16 scales.
  __device__ __forceinline__ void set_scales(uint32_t pair, int m) {
    const float2 v = __half22float2(*reinterpret_cast<const __half2*>(&pair));
    const uint32_t both[2] = {pack_bf16(v.x, v.x), pack_bf16(v.y, v.y)};
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      if constexpr (S::kZeros) {
        scale[m][r][0] = both[r];
      } else {
        scale[m][r][0] = times(both[r], power_of_two(133 + kWideDown));
        scale[m][r][1] = times(both[r], power_of_two(129 + kWideDown));
        zero[m][r] = times(both[r], power_of_two(3 + kWideDown) | 0x80008000u);
      }
    }
  }
  // From the word of the lane's eight zero points.
  __device__ __forceinline__ void set_zeros(uint32_t word, const WideLane<S>& l) {
#pragma unroll
    for (int m = 0; m < S::kOperands; ++m)
#pragma unroll
      for (int r = 0; r < 2; ++r) zero[m][r] = (0x4300u | (word >> 4 * (l.sub + m + 4 * r) & 15u)) * 0x10001u;
  }
  // (code - zero) * scale of a word's eight codes; 2^kWideDown times that without zero points.
  __device__ __forceinline__ void operand(uint32_t (&a)[4], uint32_t word, int m) const {
#pragma unroll
    for (int reg = 0; reg < 4; ++reg) {
      const int bit = 4 * marlin::fragment_field(reg, 4), r = reg % 2;
      if constexpr (S::kZeros) {
        const uint32_t pair = merge_masked(word >> bit, 0x000f000fu, 0x43004300u);
        a[reg] =
            bits_of(__hmul2(as_pair(bits_of(__hsub2(as_pair(pair), as_pair(zero[m][r])))), as_pair(scale[m][r][0])));
      } else {
        const uint32_t pair = word >> bit / 8 * 8 & 0x000f000fu << bit % 8;
        a[reg] = bits_of(__hfma2(as_pair(pair), as_pair(scale[m][r][bit % 8 / 4]), as_pair(zero[m][r])));
      }
    }
  }

 private:
  __device__ __forceinline__ static __nv_bfloat162 as_pair(const uint32_t& v) {
    return *reinterpret_cast<const __nv_bfloat162*>(&v);
  }
  __device__ __forceinline__ static uint32_t bits_of(__nv_bfloat162 v) {
    return *reinterpret_cast<const uint32_t*>(&v);
  }
  // Twice, as bf16.
  __device__ __forceinline__ static constexpr uint32_t power_of_two(int exponent) {
    return static_cast<uint32_t>(127 + exponent) << 7 | static_cast<uint32_t>(127 + exponent) << 23;
  }
  __device__ __forceinline__ static uint32_t times(uint32_t pair, uint32_t power) {
    return bits_of(__hmul2(as_pair(pair), as_pair(power)));
  }
};

#endif  // FEWBIT_SM90A

}  // namespace fewbit::cuda
