#pragma once
// What the kernel of marlin_wide.cuh is put together from: the job, the walk of a block over its tiles, the
// side that fills the stages, and a lane's share of the weights.
#include "kernels/hopper.cuh"
#include "kernels/marlin_tile.cuh"
#include "kernels/mma.cuh"

namespace fewbit::cuda {

constexpr int kWideWeights = 3;  // linears of one x in one launch
constexpr int kWideOuts = 256;   // outputs of a block's tile
constexpr int kWideTiles = 4;    // k-tiles of a stage
constexpr int kWideDepth = kWideTiles * marlin::kTileK;
constexpr int kWideMultiplying = 2 * 128;             // threads of the two warpgroups that multiply
constexpr int kWideThreads = kWideMultiplying + 128;  // and one that feeds them
constexpr int kWideBand = 8;  // tiles of rows that are worked on together: their x stays in the L2

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
  uint32_t* counters;        // [shared_tiles, 2], zero between launches
};

// What the copy engine reads in boxes: x [rows, in], and the words of each weight as [in / 16, out / 64,
// 128].
struct WideMaps {
  CUtensorMap x, words[kWideWeights];
};

// How many blocks, and how many tiles they share: what makes the longest block shortest, a meeting counted as
// kMeeting stages. Fewer tiles than multiprocessors: each tile for itself, cut in equal parts; more: whole
// rounds, or the last one or two rounds laid end to end and cut into equal runs.
struct WidePlan {
  int grid = 0, shared_tiles = 0;
};
inline WidePlan plan_wide(int sms, int64_t tiles, int steps) {
  constexpr int kMeeting = 8;
  const int64_t rounds = (tiles + sms - 1) / sms, work = tiles * steps;
  WidePlan best{static_cast<int>(tiles < sms ? tiles : sms), 0};
  int64_t least = rounds * steps;
  const auto offer = [&](int64_t grid, int64_t shared, int64_t cost) {
    if (cost >= least) return;
    least = cost;
    best = {static_cast<int>(grid), static_cast<int>(shared)};
  };
  for (int64_t parts = 2; parts * tiles <= sms && parts <= steps; ++parts)
    offer(parts * tiles, tiles, (steps + parts - 1) / parts + kMeeting);
  if (work >= sms) offer(sms, rounds > 1 ? tiles - (rounds - 2) * sms : tiles, work / sms + 2 * kMeeting);
  return best;
}

// Stages first of a tile and one past the last.
struct WideRun {
  int tile, from, to;
};

// The runs of a block, in order: its part of the shared tiles, then whole tiles.
struct WideWalk {
  const WideJob& job;
  int unit, end_unit;  // stages of the shared tiles, counted through
  int tile, tiles;

  __device__ __forceinline__ static int unit_of(const WideJob& job, int block) {
    return static_cast<int>(static_cast<int64_t>(job.shared_tiles) * job.steps * block / gridDim.x);
  }
  // The block that has a unit.
  __device__ __forceinline__ static int block_of(const WideJob& job, int unit) {
    return static_cast<int>((static_cast<int64_t>(unit + 1) * gridDim.x - 1) /
                            (job.shared_tiles * job.steps));
  }
  __device__ __forceinline__ explicit WideWalk(const WideJob& j)
      : job(j),
        unit(unit_of(j, blockIdx.x)),
        end_unit(unit_of(j, blockIdx.x + 1)),
        tile(j.shared_tiles + blockIdx.x),
        tiles(j.out_tiles * j.row_tiles) {}
  __device__ __forceinline__ bool next(WideRun& run) {
    if (unit < end_unit) {
      run.tile = unit / job.steps;
      run.from = unit - run.tile * job.steps;
      run.to = min(job.steps, run.from + end_unit - unit);
      unit += run.to - run.from;
      return true;
    }
    if (tile >= tiles) return false;
    run = {tile, 0, job.steps};
    tile += gridDim.x;
    return true;
  }
};

// Where a tile lies.
struct WidePlace {
  int weight;  // index
  int chunk;   // first run of 64 outputs
  int chunks;  // how many exist, up to 4
  int row;     // first row of x

  __device__ __forceinline__ WidePlace(const WideJob& job, int tile, int tokens) {
    const int band = tile / (kWideBand * job.out_tiles), at = tile - band * kWideBand * job.out_tiles;
    const int width = min(kWideBand, job.row_tiles - band * kWideBand);
    int out_tile = at / width;
    row = (band * kWideBand + at - out_tile * width) * tokens;
    weight = 0;
    while (out_tile >= job.weights[weight].end_tile) ++weight;
    if (weight > 0) out_tile -= job.weights[weight - 1].end_tile;
    chunk = out_tile * (kWideOuts / marlin::kTileN);
    chunks = min(kWideOuts / marlin::kTileN, job.weights[weight].w.out / marlin::kTileN - chunk);
  }
};

constexpr int kSliceOctets = 4;  // octets of tokens that leave through shared memory at a time

// kFine: groups end inside of a stage.
template <int kTokens_, bool kZeros_, bool kFine_>
struct WideShape {
  static constexpr int kTokens = kTokens_;
  static constexpr bool kZeros = kZeros_, kFine = kFine_;
  static constexpr int kChunkBytes = marlin::tile_words(4) * 4;                // of a k-tile
  static constexpr int kTileBytes = kWideOuts / marlin::kTileN * kChunkBytes;  // of a k-tile, all outputs
  static constexpr int kXBytes = kTokens * kWideDepth * 2;
  static constexpr int kWordBytes = kWideTiles * kTileBytes;
  static constexpr int kGroups = kFine ? 2 : 1;  // that can begin in a stage
  static constexpr int kScaleBytes = kWideOuts * 2, kZeroBytes = kZeros ? kWideOuts / 2 : 0;  // of a group
  static constexpr int kStageBytes = kXBytes + kWordBytes + kGroups * (kScaleBytes + kZeroBytes);
  static constexpr int kStages = kTokens == 128 ? 8 : 12;
  static constexpr int kSliceStride = 128 * 2 + 16;  // bytes from token to token, for the banks
  static constexpr int kSliceBytes = 8 * kSliceOctets * kSliceStride;  // of a warpgroup
  static constexpr int kPartQuads = kTokens / 4 * kWideMultiplying;  // of sums that a block leaves of a tile
  static constexpr int kAlign = 1024;                                // of a swizzled tile
  static constexpr int kShared = kAlign + kStages * kStageBytes + 2 * kSliceBytes;
};

#ifdef FEWBIT_SM90A

// Shared memory of a block: arrays over the stages.
template <class S>
struct WideMemory {
  uint8_t *x, *words, *scales, *zeros, *slices;
  __device__ __forceinline__ explicit WideMemory(uint8_t* shared) {
    x = shared + (S::kAlign - shared_address(shared) % S::kAlign) % S::kAlign;
    words = x + S::kStages * S::kXBytes;
    scales = words + S::kStages * S::kWordBytes;
    zeros = scales + S::kStages * S::kGroups * S::kScaleBytes;
    slices = zeros + S::kStages * S::kGroups * S::kZeroBytes;
  }
};

// The side that fills the stages: a warp each for x, the words, and scales with zero points, so that none of
// them holds up the others. Each announces its own bytes. `copy(place, step, slot, barrier)` is called by all
// lanes; `barrier`: the slot's address.
constexpr int kWideFeeders = 3;
template <class S, class Copy>
__device__ __forceinline__ void feed(const WideJob& job, uint64_t* full, uint64_t* empty, Copy&& copy) {
  const uint32_t full_at = kept_address(full), empty_at = kept_address(empty);
  WideWalk walk(job);
  WideRun run;
  int slot = 0;
  uint32_t phase = 1;  // the first round finds all stages empty
  while (walk.next(run)) {
    const WidePlace place(job, run.tile, S::kTokens);
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
  feed<S>(job, full, empty, [&](const WidePlace& place, int step, int slot, uint32_t barrier) {
    if (!elected()) return;
    barrier_expect(barrier, S::kXBytes);
    bulk_copy_box(to + slot * S::kXBytes, &maps.x, step * kWideDepth, place.row, barrier);
  });
}
template <class S>
__device__ __forceinline__ void feed_words(const WideJob& job, const WideMaps& maps,
                                           const WideMemory<S>& memory, uint64_t* full, uint64_t* empty) {
  const uint32_t to = kept_address(memory.words);
  feed<S>(job, full, empty, [&](const WidePlace& place, int step, int slot, uint32_t barrier) {
    if (!elected()) return;
    barrier_expect(barrier, S::kWordBytes);
    bulk_copy_box(to + slot * S::kWordBytes, &maps.words[place.weight], 0, place.chunk, step * kWideTiles,
                  barrier);
  });
}
template <class S>
__device__ __forceinline__ void feed_groups(const WideJob& job, const WideMemory<S>& memory, uint64_t* full,
                                            uint64_t* empty) {
  const uint32_t to_scales = kept_address(memory.scales), to_zeros = kept_address(memory.zeros);
  feed<S>(job, full, empty, [&](const WidePlace& place, int step, int slot, uint32_t barrier) {
    const MarlinSource& w = job.weights[place.weight].w;
    const int scale_bytes = w.grouped() ? place.chunks * 128 : 0,
              zero_bytes = S::kZeros ? place.chunks * 32 : 0;
    if (!elected()) return;
    barrier_expect(barrier, S::kGroups * (scale_bytes + zero_bytes));
#pragma unroll
    for (int i = 0; i < S::kGroups; ++i) {
      const int64_t group = min(step * kWideTiles + 2 * i, w.k_tiles() - 1) >> job.group_shift;
      const int at = slot * S::kGroups + i;
      if (scale_bytes)
        bulk_copy(to_scales + at * S::kScaleBytes, w.s + group * w.out + place.chunk * marlin::kTileN,
                  scale_bytes, barrier);
      if (S::kZeros)
        bulk_copy(to_zeros + at * S::kZeroBytes, w.z + group * (w.out / 8) + place.chunk * 8, zero_bytes,
                  barrier);
    }
  });
}

// A lane's part of the tile. Of a k-tile of 64 outputs, which lies as four sub-tiles of 16 with one word a
// lane each, a warp takes two sub-tiles: which two depends on the lane, so that all banks of shared memory
// are read at once.
struct WideLane {
  int lane, group, warp;  // of the warpgroup
  int chunk;              // run of 64 outputs among the block's four
  int half;               // sub-tiles 2 half and 2 half + 1

  __device__ __forceinline__ WideLane() {
    lane = threadIdx.x % 32;
    warp = threadIdx.x / 32 % 4;
    group = threadIdx.x / 128;
    chunk = 2 * group + warp / 2;
    half = (warp ^ lane / 8) & 1;
  }
  // The tile's output in row 8 r + lane / 4 of the warp's m-th operand.
  __device__ __forceinline__ int output(int m, int r) const {
    return marlin::kTileN * chunk + 16 * (2 * half + m) + 8 * r + lane / 4;
  }
};

// Scales and zero points of a lane's four outputs, twice side by side.
struct WideGroup {
  uint32_t scale[2][2], zero[2][2];  // [operand][upper eight rows]

  __device__ __forceinline__ WideGroup() {
#pragma unroll
    for (int i = 0; i < 4; ++i) zero[i / 2][i % 2] = 0x43084308u;  // 128 + 8
  }
  // From the word that holds an operand's two f16 scales.
  __device__ __forceinline__ void set_scales(uint32_t pair, int m) {
    const float2 v = __half22float2(*reinterpret_cast<const __half2*>(&pair));
    scale[m][0] = pack_bf16(v.x, v.x);
    scale[m][1] = pack_bf16(v.y, v.y);
  }
  // From the word of the lane's eight zero points.
  __device__ __forceinline__ void set_zeros(uint32_t word, const WideLane& l) {
#pragma unroll
    for (int m = 0; m < 2; ++m)
#pragma unroll
      for (int r = 0; r < 2; ++r)
        zero[m][r] = (0x4300u | (word >> 4 * (2 * l.half + m + 4 * r) & 15u)) * 0x10001u;
  }
  // (code - zero) * scale of a word's eight codes.
  __device__ __forceinline__ void operand(uint32_t (&a)[4], uint32_t word, int m) const {
#pragma unroll
    for (int reg = 0; reg < 4; ++reg) {
      const uint32_t pair =
          merge_masked(word >> (4 * marlin::fragment_field(reg, 4)), 0x000f000fu, 0x43004300u);
      const auto as_pair = [](const uint32_t& v) { return *reinterpret_cast<const __nv_bfloat162*>(&v); };
      const __nv_bfloat162 v =
          __hmul2(__hsub2(as_pair(pair), as_pair(zero[m][reg % 2])), as_pair(scale[m][reg % 2]));
      a[reg] = *reinterpret_cast<const uint32_t*>(&v);
    }
  }
};

#endif  // FEWBIT_SM90A

}  // namespace fewbit::cuda
