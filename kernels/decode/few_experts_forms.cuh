#pragma once
// How a warp multiplies a tile of an expert's outputs, over a part of k, with up to 16 rows of x that lie in device
// memory. The weights are the 16-row operand of the tensor cores and stream past the L1, each read once; x, which all
// tiles read, comes from the caches.
//
// A form gives
//   Sum         the type of a sum
//   kSubs       sub-tiles of 16 outputs in a tile
//   kXBytes     bytes of a value of x
//   kWarps      of a block
//   kBlocks     that find room on a multiprocessor together, at least
//   stages      spans of k under way in shared memory, of which a block may have so much, with k in `parts`
//   warp_bytes  that a warp has in shared memory
//   multiply    sums += the products of part `part` of `parts` along k. x: this lane's row of each block of 8 rows;
//               shared: the warp's bytes. With lane = 4 g + t, sums[j][c][i] belong to output 16 j + g + 8 (i / 2) and
//               row 8 c + 2 t + i % 2
//   value       of a finished sum
#include <algorithm>

#include "kernels/decode/few_experts_job.cuh"
#include "kernels/device/fp4_codes.cuh"
#include "kernels/products/marlin/marlin_tile.cuh"
#include "kernels/products/skinny_formats.cuh"

namespace fewbit::cuda::few_experts_step {

__device__ __forceinline__ uint4 load_once(const void* at) {
  uint4 v;
  asm("ld.global.nc.L1::no_allocate.L2::256B.v4.u32 {%0, %1, %2, %3}, [%4];"
      : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
      : "l"(at));
  return v;
}

// Weights [out, in] as a checkpoint stores them, by the formats of kernels/products/skinny_formats.cuh: a lane takes 16
// bytes of two outputs at once, for any k of the instruction, as long as x comes from the same k.
template <class Format>
struct RowForm {
  using Sum = typename Format::Sum;
  static constexpr int kSubs = 1, kXBytes = Format::kXBytes;
  static constexpr int kWarps = 8, kBlocks = 1;
  static constexpr int kStepBytes = 64;  // of a row: what four lanes take at once
  static constexpr int kAhead = 4;       // steps under way
  static_assert(Format::kXBytes == Format::kCodeBytes);

  static int stages(const Matrix&, int, size_t) { return 0; }
  __host__ __device__ static int warp_bytes(const Matrix&) { return 0; }
  template <int kRowBlocks>
  static __device__ __forceinline__ void multiply(Sum (&sums)[kSubs][kRowBlocks][4], const Pointers& p, const Matrix& m,
                                                  int tile, int part, int parts, const uint8_t* const (&x)[kRowBlocks],
                                                  uint8_t*) {
    constexpr int kWiden = Format::kXBytes / Format::kBytes;
    const int lane = threadIdx.x % 32, own = lane % 4 * 16, o = tile * 16 + lane / 4;
    const int64_t row_bytes = static_cast<int64_t>(m.in) * Format::kBytes;
    const int all = static_cast<int>(row_bytes / kStepBytes), end = all * (part + 1) / parts;
    const uint8_t* low = p.w + o * row_bytes + own;
    const uint8_t* high = low + 8 * row_bytes;
    for (int first = all * part / parts; first < end; first += kAhead) {
      uint4 a[kAhead], b[kAhead];
#pragma unroll
      for (int i = 0; i < kAhead; ++i)
        if (first + i < end) {
          a[i] = load_once(low + (first + i) * kStepBytes);
          b[i] = load_once(high + (first + i) * kStepBytes);
        }
#pragma unroll
      for (int i = 0; i < kAhead; ++i)
        if (first + i < end)
#pragma unroll
          for (int c = 0; c < kRowBlocks; ++c)
            Format::multiply(sums[0][c], a[i], b[i], x[c] + kWiden * ((first + i) * kStepBytes + own));
    }
  }
  static __device__ __forceinline__ float value(Sum sum, const Pointers& p, int o, const float* x_scale) {
    if constexpr (Format::kBytes == 2) return sum;
    return mul_rn(mul_rn(static_cast<float>(sum), *x_scale), static_cast<const float*>(p.scales)[o]);
  }
};

// MXFP4 in words of eight codes (kernels/grids/fp4_words.h): 16 bytes are 32 codes of one output under one power of
// two. A lane takes such a block of two outputs at once, and widens it with its scale, exactly; four lanes take
// neighbouring blocks, of which the last ones may not be there.
struct BlockForm {
  using Sum = float;
  static constexpr int kSubs = 1, kXBytes = 2;
  static constexpr int kBlock = 32, kBlockBytes = 16;  // inputs, bytes
  // Steps of four blocks of codes: so many are on their way while as many are widened, which takes as long as reading.
  // Blocks are small, since those of four experts of gpt-oss (720) are then all at once on a GPU of 132
  // multiprocessors.
  static constexpr int kAhead = 2, kWarps = 4, kBlocks = 6;

  static int stages(const Matrix&, int, size_t) { return 0; }
  __host__ __device__ static int warp_bytes(const Matrix&) { return 0; }
  template <int kRowBlocks>
  static __device__ __forceinline__ void multiply(Sum (&sums)[kSubs][kRowBlocks][4], const Pointers& p, const Matrix& m,
                                                  int tile, int part, int parts, const uint8_t* const (&x)[kRowBlocks],
                                                  uint8_t*) {
    const int lane = threadIdx.x % 32, t = lane % 4, o = tile * 16 + lane / 4, blocks = m.in / kBlock;
    const int all = (blocks + 3) / 4, end = all * (part + 1) / parts;
    const Outputs from{p.w + static_cast<int64_t>(o) * blocks * kBlockBytes,
                       static_cast<const uint8_t*>(p.scales) + static_cast<int64_t>(o) * blocks, blocks};
    int first = all * part / parts;
    Step now[kAhead], next[kAhead];
    load(now, from, first, end, t);
#pragma unroll 1
    for (; first < end; first += kAhead) {
      load(next, from, first + kAhead, end, t);
#pragma unroll
      for (int i = 0; i < kAhead; ++i)
        if (first + i < end) multiply_blocks(sums[0], now[i], x, min((first + i) * 4 + t, blocks - 1));
#pragma unroll
      for (int i = 0; i < kAhead; ++i) now[i] = next[i];
    }
  }
  static __device__ __forceinline__ float value(Sum sum, const Pointers&, int, const float*) { return sum; }

 private:
  // Codes and scales of outputs g and g + 8; zeros behind the last block.
  struct Step {
    uint4 low, high;
    uint32_t low_scale, high_scale;
  };
  struct Outputs {  // from output g on
    const uint8_t *codes, *scales;
    int blocks;
  };
  static __device__ __forceinline__ void load(Step (&to)[kAhead], const Outputs& from, int first, int end, int t) {
    const int eight = 8 * from.blocks;  // from an output to that eight rows on, in blocks
#pragma unroll
    for (int i = 0; i < kAhead; ++i) {
      const int block = (first + i) * 4 + t;
      to[i].low = to[i].high = make_uint4(0, 0, 0, 0), to[i].low_scale = to[i].high_scale = 0;
      if (first + i < end && block < from.blocks) {
        to[i].low = load_once(from.codes + block * kBlockBytes);
        to[i].high = load_once(from.codes + static_cast<int64_t>(eight + block) * kBlockBytes);
        to[i].low_scale = __ldg(from.scales + block), to[i].high_scale = __ldg(from.scales + eight + block);
      }
    }
  }
  // x: of the inputs of block `block`, or of any where the codes are zeros.
  template <int kRowBlocks>
  static __device__ __forceinline__ void multiply_blocks(Sum (&sums)[kRowBlocks][4], const Step& step,
                                                         const uint8_t* const (&x)[kRowBlocks], int block) {
    const uint32_t low_factor = fp4_factor(step.low_scale), high_factor = fp4_factor(step.high_scale);
    const uint32_t lows[4] = {step.low.x, step.low.y, step.low.z, step.low.w};
    const uint32_t highs[4] = {step.high.x, step.high.y, step.high.z, step.high.w};
#pragma unroll
    for (int word = 0; word < 4; ++word) {
      const uint32_t first[4] = {fp4_pair<0>(lows[word], low_factor), fp4_pair<0>(highs[word], high_factor),
                                 fp4_pair<1>(lows[word], low_factor), fp4_pair<1>(highs[word], high_factor)};
      const uint32_t second[4] = {fp4_pair<2>(lows[word], low_factor), fp4_pair<2>(highs[word], high_factor),
                                  fp4_pair<3>(lows[word], low_factor), fp4_pair<3>(highs[word], high_factor)};
#pragma unroll
      for (int c = 0; c < kRowBlocks; ++c) {
        const uint4 v = *reinterpret_cast<const uint4*>(x[c] + block * (2 * kBlock) + word * 16);
        mma_bf16(sums[c], first, v.x, v.y);
        mma_bf16(sums[c], second, v.z, v.w);
      }
    }
  }
};

// Words of the Marlin layout, codes minus zero points as exact bf16; the sums of a group are scaled where it ends. The
// words and scales of the next spans of k-tiles are on their way to shared memory, each lane's own, and the x of the
// next span to registers, while a span is multiplied.
template <int kBits>
struct PackedForm {
  using Sum = float;
  static constexpr int kSubs = marlin::kSubTiles, kXBytes = 2, kWarps = 8, kBlocks = 1;
  static constexpr int kAhead = 32 / kBits;                   // k-tiles of a span
  static constexpr int kWordBytes = 32 * 4 * kAhead * kBits;  // of a span of a warp
  static constexpr int kScaleBytes = 32 * 16;                 // of a group of a warp

  // Three, where they fit and where a warp of `parts` has so many: two on their way hide the memory's latency, two
  // blocks find room on one multiprocessor, and what is not taken is there for the launches that follow.
  static int stages(const Matrix& m, int parts, size_t shared) {
    const size_t span = static_cast<size_t>(span_bytes(m)) * kWarps;
    const int spans = m.in / marlin::kTileK / kAhead / parts + 1;
    return std::clamp(static_cast<int>(shared / span), 1, std::min(spans, 3));
  }
  __host__ __device__ static int span_bytes(const Matrix& m) { return kWordBytes + groups_of_span(m) * kScaleBytes; }
  __host__ __device__ static int warp_bytes(const Matrix& m) { return m.stages * span_bytes(m); }

  template <int kRowBlocks>
  static __device__ __forceinline__ void multiply(Sum (&sums)[kSubs][kRowBlocks][4], const Pointers& p, const Matrix& m,
                                                  int tile, int part, int parts, const uint8_t* const (&x)[kRowBlocks],
                                                  uint8_t* shared) {
    const int lane = threadIdx.x % 32, tiles = m.in / marlin::kTileK, spans = (tiles + kAhead - 1) / kAhead;
    const int begin = spans * part / parts, end = spans * (part + 1) / parts, bytes = span_bytes(m);
    // Sums are scaled where a group ends, and at the end of a span of a longer one; all these are powers of two.
    const int last_of_group = (m.group_tiles > 0 ? min(m.group_tiles, kAhead) : kAhead) - 1;
    uint32_t next_x[kAhead][kRowBlocks][2];
    for (int i = 0; i + 1 < m.stages; ++i) {
      if (begin + i < end) fetch(shared + i * bytes + lane * 16, p, m, tile, (begin + i) * kAhead, lane);
      cp_async_commit();
    }
    if (begin < end) load_x(next_x, x, begin * kAhead, tiles, lane);
    int stage = 0, free = m.stages - 1;
    for (int span = begin; span < end; ++span) {
      if (span + m.stages - 1 < end)
        fetch(shared + free * bytes + lane * 16, p, m, tile, (span + m.stages - 1) * kAhead, lane);
      cp_async_commit();  // of nothing too: spans are counted
      uint32_t own_x[kAhead][kRowBlocks][2];
#pragma unroll
      for (int i = 0; i < kAhead; ++i)
#pragma unroll
        for (int c = 0; c < kRowBlocks; ++c) own_x[i][c][0] = next_x[i][c][0], own_x[i][c][1] = next_x[i][c][1];
      if (span + 1 < end) load_x(next_x, x, (span + 1) * kAhead, tiles, lane);
      if (m.stages == 3)
        cp_async_wait<2>();
      else if (m.stages == 2)
        cp_async_wait<1>();
      else
        cp_async_wait<0>();
      const uint8_t* own = shared + stage * bytes + lane * 16;
      const int first = span * kAhead, left = tiles - first;
      float part_sums[kSubs][kRowBlocks][4] = {};
      LaneZeros<kBits> zeros;
      alignas(16) __half scales[8];
#pragma unroll
      for (int i = 0; i < kAhead; ++i) {
        if (i >= left) break;
        if ((i & last_of_group) == 0) {
          take_scales(scales, own + kWordBytes + i / (last_of_group + 1) * kScaleBytes, p, m, tile, lane);
          take_zeros(zeros, p, m, first + i, tile, lane);
        }
        uint32_t words[kBits];
#pragma unroll
        for (int q = 0; q < kBits / 4; ++q)
          *reinterpret_cast<uint4*>(&words[4 * q]) =
              *reinterpret_cast<const uint4*>(own + (i * (kBits / 4) + q) * (32 * 16));
#pragma unroll
        for (int j = 0; j < kSubs; ++j) {
          uint32_t a[4];
          fragment<kBits>(a, words, j, zeros);
#pragma unroll
          for (int c = 0; c < kRowBlocks; ++c) mma_bf16(part_sums[j][c], a, own_x[i][c][0], own_x[i][c][1]);
        }
        if ((i & last_of_group) == last_of_group || i + 1 == left) add_scaled(sums, part_sums, scales);
      }
      free = stage;
      stage = stage + 1 == m.stages ? 0 : stage + 1;
    }
    cp_async_wait<0>();
  }
  static __device__ __forceinline__ float value(Sum sum, const Pointers&, int, const float*) { return sum; }

 private:
  __host__ __device__ static int groups_of_span(const Matrix& m) {
    return m.group_tiles == 0 ? 0 : m.group_tiles < kAhead ? kAhead / m.group_tiles : 1;
  }
  // The words and scales of the span from k-tile `first` on, to `to`, the lane's place in a stage.
  static __device__ __forceinline__ void fetch(uint8_t* to, const Pointers& p, const Matrix& m, int tile, int first,
                                               int lane) {
    const int tiles = m.in / marlin::kTileK, row_words = m.out * kBits / 2;
    const auto* words = reinterpret_cast<const uint32_t*>(p.w) + tile * marlin::tile_words(kBits) + lane * kBits;
#pragma unroll
    for (int i = 0; i < kAhead; ++i)
      if (first + i < tiles)
#pragma unroll
        for (int q = 0; q < kBits / 4; ++q)
          cp_async16(to + (i * (kBits / 4) + q) * (32 * 16),
                     words + static_cast<int64_t>(first + i) * row_words + 4 * q);
    if (m.group_tiles == 0) return;
    const auto* scales =
        static_cast<const __half*>(p.scales) + tile * marlin::kTileN + marlin::fragment_scale(lane, 0, true);
    const int step = min(m.group_tiles, kAhead);
    for (int i = 0; i < kAhead && first + i < tiles; i += step)
      cp_async16(to + kWordBytes + i / step * kScaleBytes,
                 scales + static_cast<int64_t>((first + i) / m.group_tiles) * m.out);
  }
  template <int kRowBlocks>
  static __device__ __forceinline__ void load_x(uint32_t (&to)[kAhead][kRowBlocks][2],
                                                const uint8_t* const (&x)[kRowBlocks], int first, int tiles, int lane) {
#pragma unroll
    for (int i = 0; i < kAhead; ++i)
#pragma unroll
      for (int c = 0; c < kRowBlocks; ++c)
        if (first + i < tiles) {
          const auto* at = x[c] + (first + i) * (2 * marlin::kTileK) + lane % 4 * 4;
          to[i][c][0] = *reinterpret_cast<const uint32_t*>(at);
          to[i][c][1] = *reinterpret_cast<const uint32_t*>(at + 16);
        }
  }
  // The lane's scales of a group, which lie at `at` in shared memory; those of whole rows come from device memory.
  static __device__ __forceinline__ void take_scales(__half (&scales)[8], const uint8_t* at, const Pointers& p,
                                                     const Matrix& m, int tile, int lane) {
    if (m.group_tiles > 0) {
      *reinterpret_cast<uint4*>(scales) = *reinterpret_cast<const uint4*>(at);
      return;
    }
    const auto* s = static_cast<const __half*>(p.scales) + tile * marlin::kTileN;
#pragma unroll
    for (int i = 0; i < 8; ++i) scales[i] = s[marlin::fragment_scale(lane, i, false)];
  }
  // The lane's zero points of the group of k-tile `k_tile`.
  static __device__ __forceinline__ void take_zeros(LaneZeros<kBits>& zeros, const Pointers& p, const Matrix& m,
                                                    int k_tile, int tile, int lane) {
    if (!p.zeros) return zeros.set_middle();
    const int64_t group = m.group_tiles > 0 ? k_tile / m.group_tiles : 0;
    zeros.set_words(p.zeros + group * (m.out * kBits / 32) + tile * (2 * kBits), lane);
  }
  // sums += part * scales; part = 0.
  template <int kRowBlocks>
  static __device__ __forceinline__ void add_scaled(float (&sums)[kSubs][kRowBlocks][4],
                                                    float (&part)[kSubs][kRowBlocks][4], const __half (&scales)[8]) {
#pragma unroll
    for (int j = 0; j < kSubs; ++j)
#pragma unroll
      for (int c = 0; c < kRowBlocks; ++c)
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          sums[j][c][i] = fmaf(__half2float(scales[2 * j + i / 2]), part[j][c][i], sums[j][c][i]);
          part[j][c][i] = 0;
        }
  }
};

}  // namespace fewbit::cuda::few_experts_step
