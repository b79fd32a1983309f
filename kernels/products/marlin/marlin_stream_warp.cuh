#pragma once
// The arithmetic of a warp of marlin_stream.cuh: its 128 values of k of up to kTokens rows of x, as the column operand
// of the tensor cores, and the sums of one chunk of 64 outputs. Two kinds with the same interface:
//   Bf16Columns, Bf16Sums   8 bits, or groups that end inside of the 128 values: code - zero as bf16
//   LimbColumns, LimbSums   one row of 4 bits in larger groups, zero points of 8: the words as they lie, in int8
#include "kernels/products/marlin/limb_product.cuh"
#include "kernels/products/marlin/marlin_split_k.cuh"

namespace fewbit::cuda::marlin_stream {

using namespace marlin_split_k;

constexpr int kSumStride = marlin::kTileN + 4;  // floats from token to token of the sums; + 4 against bank conflicts

// The scales and zero points of the current group for a lane's outputs.
template <int kBits, bool kZeros>
struct GroupScales {
  alignas(16) __half scales[8];
  LaneZeros<kBits> zeros;

  __device__ __forceinline__ explicit GroupScales(float scale) {
#pragma unroll
    for (int i = 0; i < 8; ++i) scales[i] = __half(scale);
    zeros.set_middle();
  }
  __device__ __forceinline__ void read(const uint8_t* from, bool has_scales, int lane) {
    if (has_scales)
      *reinterpret_cast<uint4*>(scales) =
          *reinterpret_cast<const uint4*>(from + 2 * marlin::fragment_scale(lane, 0, true));
    if constexpr (kZeros) zeros.set_words(reinterpret_cast<const uint32_t*>(from + marlin::kTileN * 2), lane);
  }
};

// x of the warp in shared memory, [tokens, kTokenBytes]: the pairs of values of each k-tile in the order of
// marlin::pair_slot, zeros past the end of k.
template <int kColumns>
struct Bf16Columns {
  static constexpr int kTokenBytes = kWarpTiles * marlin::kTileK * 2 + 32;  // + 32 against bank conflicts
  static constexpr int kLanes = 32 / (8 * kColumns);                        // of a token
  static constexpr int kHalves = 2 * kWarpTiles / kLanes;                   // runs of eight values of a lane
  const uint8_t* at[kColumns];                                              // this lane's pairs of k-tile 0

  __device__ __forceinline__ Bf16Columns(uint8_t* to, const Job& job, int row0, int tokens, int tile0, int tiles,
                                         int lane) {
    const int token = lane / kLanes, first = lane % kLanes;
    const __nv_bfloat16* from =
        job.x + static_cast<int64_t>(row0 + min(token, tokens - 1)) * job.in + tile0 * marlin::kTileK;
    uint4 v[kHalves];
#pragma unroll
    for (int i = 0; i < kHalves; ++i) {
      const int half = first + i * kLanes;
      v[i] = half / 2 < tiles ? *reinterpret_cast<const uint4*>(from + 8 * half) : uint4{0, 0, 0, 0};
    }
    if (token < tokens)
#pragma unroll
      for (int i = 0; i < kHalves; ++i) {
        const int half = first + i * kLanes, pair = half % 2 * 4;
        auto* pairs = reinterpret_cast<uint32_t*>(to + token * kTokenBytes) + half / 2 * 8;
        pairs[marlin::pair_slot(pair)] = v[i].x;
        pairs[marlin::pair_slot(pair + 1)] = v[i].y;
        pairs[marlin::pair_slot(pair + 2)] = v[i].z;
        pairs[marlin::pair_slot(pair + 3)] = v[i].w;
      }
    __syncwarp();
    // Columns past the last token repeat it. That is harmless: a column of the product depends on its own activations
    // only, and these columns are not stored.
#pragma unroll
    for (int c = 0; c < kColumns; ++c) at[c] = to + min(8 * c + lane / 4, tokens - 1) * kTokenBytes + lane % 4 * 8;
  }
  __device__ __forceinline__ uint2 pairs(int column, int tile) const {
    return *reinterpret_cast<const uint2*>(at[column] + 32 * tile);
  }
};

template <int kColumns>
struct Bf16Sums {
  float v[marlin::kSubTiles][kColumns][4];

  template <class Body>
  __device__ __forceinline__ void each(Body body) {  // body(value, index as in marlin::fragment_scale())
#pragma unroll
    for (int j = 0; j < marlin::kSubTiles; ++j)
#pragma unroll
      for (int c = 0; c < kColumns; ++c)
#pragma unroll
        for (int i = 0; i < 4; ++i) body(v[j][c][i], 2 * j + i / 2);
  }
  __device__ __forceinline__ void clear() {
    each([](float& value, int) { value = 0; });
  }
  template <class Columns, class Group>
  __device__ __forceinline__ void start(const Columns&, const Group&) {
    clear();
  }
  // += the products of a k-tile.
  template <class Columns, class Group, int kBits>
  __device__ __forceinline__ void add_tile(const Columns& x, int tile, const uint32_t (&words)[kBits],
                                           const Group& group) {
    uint2 pairs[kColumns];
#pragma unroll
    for (int c = 0; c < kColumns; ++c) pairs[c] = x.pairs(c, tile);
#pragma unroll
    for (int j = 0; j < marlin::kSubTiles; ++j) {
      uint32_t a[4];
      fragment<kBits>(a, words, j, group.zeros);
#pragma unroll
      for (int c = 0; c < kColumns; ++c) mma_bf16(v[j][c], a, pairs[c].x, pairs[c].y);
    }
  }
  // += scale * (sums of a group)
  template <class Group>
  __device__ __forceinline__ void add(const Bf16Sums& of_group, const Group& group) {
#pragma unroll
    for (int j = 0; j < marlin::kSubTiles; ++j)
#pragma unroll
      for (int c = 0; c < kColumns; ++c)
#pragma unroll
        for (int i = 0; i < 4; ++i)
          v[j][c][i] = fmaf(__half2float(group.scales[2 * j + i / 2]), of_group.v[j][c][i], v[j][c][i]);
  }
  template <class Columns, class Group>
  __device__ __forceinline__ void finish(const Columns&, const Group& group) {
    each([&](float& value, int n) { value *= __half2float(group.scales[n]); });
  }
  // To `to` [tokens, kSumStride].
  template <class Columns>
  __device__ __forceinline__ void store(const Columns&, float* to, int tokens, int lane) const {
#pragma unroll
    for (int c = 0; c < kColumns; ++c)
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int token = 8 * c + lane % 4 * 2 + i;
        if (token >= tokens) continue;
#pragma unroll
        for (int j = 0; j < marlin::kSubTiles; ++j) {
          to[token * kSumStride + 16 * j + lane / 4] = v[j][c][i];
          to[token * kSumStride + 16 * j + lane / 4 + 8] = v[j][c][2 + i];
        }
      }
  }
};

// One row of x in limbs (limb_product.cuh), as an operand in registers.
struct LimbColumns {
  static constexpr int kTokenBytes = 0, kBytes = 0;
  LimbLane lane;
  uint32_t b[kWarpTiles][2];
  int32_t start;
  float scale;

  __device__ __forceinline__ LimbColumns(uint8_t*, const Job& job, int row0, int, int tile0, int tiles, int of_lane)
      : lane(of_lane) {
    // This lane reads pair t of the lower and of the upper half of k-tile lane / 4.
    const int tile = of_lane / 4;
    const auto* from = reinterpret_cast<const uint32_t*>(job.x + static_cast<int64_t>(row0) * job.in +
                                                         (tile0 + tile) * marlin::kTileK) +
                       lane.t;
    const bool valid = tile < tiles;
    const uint32_t pairs[2] = {valid ? from[0] : 0, valid ? from[4] : 0};
    const float v[4] = {__uint_as_float(pairs[0] << 16), __uint_as_float(pairs[0] & 0xffff0000u),
                        __uint_as_float(pairs[1] << 16), __uint_as_float(pairs[1] & 0xffff0000u)};
    const uint32_t most = __reduce_max_sync(
        0xffffffffu, __float_as_uint(fmaxf(fmaxf(fabsf(v[0]), fabsf(v[1])), fmaxf(fabsf(v[2]), fabsf(v[3])))));
    const bool finite = __all_sync(0xffffffffu, isfinite(v[0] + v[1] + v[2] + v[3]));
    const int up = limb_power(__uint_as_float(most));
    int32_t whole[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) whole[i] = __float2int_rn(v[i] * power_of_two(up));
    LimbGroup group;
    group.set(__reduce_add_sync(0xffffffffu, whole[0] + whole[1] + whole[2] + whole[3]), up, finite);
    start = lane.t == 0 ? group.start[0] : lane.t == 1 ? group.start[1] : group.start[2];
    scale = group.scale;
    uint32_t words[kLimbs];
    limb_words(words, {whole[0], whole[1]}, {whole[2], whole[3]});
#pragma unroll
    for (int i = 0; i < kWarpTiles; ++i) {
      uint32_t all[kLimbs];
#pragma unroll
      for (int d = 0; d < kLimbs; ++d) all[d] = __shfl_sync(0xffffffffu, words[d], 4 * i + lane.t);
      const int limb = of_lane / 8;
      const uint32_t word = limb == 0 ? all[0] : limb == 1 ? all[1] : all[2];
      b[i][0] = __byte_perm(word, 0, lane.lower);
      b[i][1] = __byte_perm(word, 0, lane.upper);
    }
  }
};

struct LimbSums {
  int32_t v[2][4];
  float2 two;  // the sums of outputs 2 t and 2 t + 1, counted as in marlin::fragment_scale()

  template <class Group>
  __device__ __forceinline__ void start(const LimbColumns& x, const Group&) {
#pragma unroll
    for (int i = 0; i < 8; ++i) v[i / 4][i % 4] = x.start;
  }
  template <class Group>
  __device__ __forceinline__ void add_tile(const LimbColumns& x, int tile, const uint32_t (&words)[4], const Group&) {
    LimbLane::add_words(v, {words[0], words[1], words[2], words[3]}, x.b[tile][0], x.b[tile][1]);
  }
  template <class Group>
  __device__ __forceinline__ void finish(const LimbColumns& x, const Group& group) {
    float total[8];
#pragma unroll
    for (int i = 0; i < 8; ++i) total[i] = __half2float(group.scales[i]) * LimbLane::value(v[i / 4][i % 4]);
    two = x.lane.gather(total);
    two.x *= x.scale;
    two.y *= x.scale;
  }
  __device__ __forceinline__ void store(const LimbColumns& x, float* to, int, int lane) const {
    to += marlin::fragment_output(lane, x.lane.t, 0);
    to[0] = two.x;
    to[8] = two.y;
  }
};

}  // namespace fewbit::cuda::marlin_stream
