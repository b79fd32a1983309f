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
//   multiply    sums += the products of part `part` of `parts` along k. x: this lane's row of each block of 8 rows,
//               there once await_x() has returned; of rows from `rows` on the last one, whose sums nobody wants;
//               shared: the warp's bytes. With lane = 4 g + t, sums[j][c][i] belong to output 16 j + g + 8 (i / 2) and
//               row 8 c + 2 t + i % 2
//   value       of a finished sum
#include <algorithm>

#include "kernels/decode/experts/few_experts_job.cuh"
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
  template <int kRowBlocks, class Await>
  static __device__ __forceinline__ void multiply(Sum (&sums)[kSubs][kRowBlocks][4], const Pointers& p, const Matrix& m,
                                                  int tile, int part, int parts, const uint8_t* const (&x)[kRowBlocks],
                                                  int, uint8_t*, const Await& await_x) {
    await_x();
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

// MXFP4 in tiles (kernels/grids/fp4_tiles.h), a record a step: a lane widens a block of two outputs with its scale,
// exactly; four lanes have neighbouring blocks, of which the last ones may not be there. Records come to shared memory
// by asynchronous copies; what is under way, and not the widening, hides the memory's latency.
struct BlockForm {
  using Sum = float;
  static constexpr int kSubs = 1, kXBytes = 2;
  static constexpr int kBlockXBytes = kFp4Block * kXBytes;
  static constexpr int kHalfBytes = kFp4HalfWords * 4, kCodeBytes = kFp4CodeWords * 4;
  static constexpr int kRecordBytes = kCodeBytes + kFp4ScaleBytes;  // in shared memory, where scales follow their codes
  // Records of a warp's ring, all but one under way. Blocks are small, since those of four experts of gpt-oss (720) are
  // then all at once on a GPU of 132 multiprocessors.
  static constexpr int kStages = 8, kWarps = 4, kBlocks = 6;

  static int stages(const Matrix&, int, size_t) { return 0; }
  __host__ __device__ static int warp_bytes(const Matrix&) { return kStages * kRecordBytes; }
  template <int kRowBlocks, class Await>
  static __device__ __forceinline__ void multiply(Sum (&sums)[kSubs][kRowBlocks][4], const Pointers& p, const Matrix& m,
                                                  int tile, int part, int parts, const uint8_t* const (&x)[kRowBlocks],
                                                  int rows, uint8_t* shared, const Await& await_x) {
    const int lane = threadIdx.x % 32, g = lane / 4, t = lane % 4, blocks = m.in / kFp4Block;
    const int all = static_cast<int>(fp4_records(m.in));
    const int begin = all * part / parts, end = all * (part + 1) / parts;
    const uint8_t* const codes_of_tile = p.w + tile * fp4_tile_words(m.in) * 4;
    const uint8_t* from = codes_of_tile + begin * kCodeBytes + lane * 16;
    const uint8_t* const behind = codes_of_tile + end * kCodeBytes;
    const uint8_t* scales_from = codes_of_tile + all * kCodeBytes + begin * kFp4ScaleBytes + lane * 16;
    const auto fetch = [&](uint8_t* stage) {
      uint8_t* to = stage + lane * 16;
      if (from < behind) {
        cp_async16(to, from);
        cp_async16(to + kHalfBytes, from + kHalfBytes);
        if (lane < kFp4ScaleBytes / 16) cp_async16(to + kCodeBytes, scales_from);
      }
      cp_async_commit();  // of nothing too: records are counted
      from += kCodeBytes, scales_from += kFp4ScaleBytes;
    };
#pragma unroll 1  // code that runs once costs more than the loop
    for (int i = 0; i < kStages - 1; ++i) fetch(shared + i * kRecordBytes);
    await_x();
    const uint8_t* own_x[kRowBlocks];
#pragma unroll
    for (int c = 0; c < kRowBlocks; ++c) own_x[c] = x[c] + (4 * begin + t) * kBlockXBytes;
    uint8_t *now = shared, *free = shared + (kStages - 1) * kRecordBytes;
    uint4 v[kRowBlocks][4] = {};
#pragma unroll 1
    for (int step = begin; step < end; ++step) {
      // Codes of a block that is not there are zeros, which may meet any x: that of the last one.
      const int back = max(4 * step + t - (blocks - 1), 0) * kBlockXBytes;
      // Lanes of rows that are not there load none: what they multiply goes to sums of their own.
#pragma unroll
      for (int c = 0; c < kRowBlocks; ++c)
        if (8 * c + g < rows)
#pragma unroll
          for (int word = 0; word < 4; ++word)
            v[c][word] = *reinterpret_cast<const uint4*>(own_x[c] - back + word * 16);
      cp_async_wait<kStages - 2>();
      __syncwarp();  // the scales are copies of other lanes, and the record before is done with by all
      fetch(free);
      const uint8_t* record = now + lane * 16;
      const uint4 codes[2] = {*reinterpret_cast<const uint4*>(record),
                              *reinterpret_cast<const uint4*>(record + kHalfBytes)};
      const uint32_t scales = *reinterpret_cast<const uint16_t*>(now + kCodeBytes + 2 * lane);
      multiply_blocks(sums[0], codes, scales & 0xff, scales >> 8, v);
      free = now;
      now = now == shared + (kStages - 1) * kRecordBytes ? shared : now + kRecordBytes;
#pragma unroll
      for (int c = 0; c < kRowBlocks; ++c) own_x[c] += 4 * kBlockXBytes;
    }
    cp_async_wait<0>();
  }
  static __device__ __forceinline__ float value(Sum sum, const Pointers&, int, const float*) { return sum; }

 private:
  // codes, scales: of outputs g and g + 8; x: of a block's inputs.
  template <int kRowBlocks>
  static __device__ __forceinline__ void multiply_blocks(Sum (&sums)[kRowBlocks][4], const uint4 (&codes)[2],
                                                         uint32_t low_scale, uint32_t high_scale,
                                                         const uint4 (&x)[kRowBlocks][4]) {
    const uint32_t low_factor = fp4_factor(low_scale), high_factor = fp4_factor(high_scale);
    const uint32_t lows[4] = {codes[0].x, codes[0].y, codes[0].z, codes[0].w};
    const uint32_t highs[4] = {codes[1].x, codes[1].y, codes[1].z, codes[1].w};
#pragma unroll
    for (int word = 0; word < 4; ++word) {
      uint32_t first[4], second[4];
      fp4_operands(first, second, lows[word], highs[word], low_factor, high_factor);
#pragma unroll
      for (int c = 0; c < kRowBlocks; ++c) {
        mma_bf16(sums[c], first, x[c][word].x, x[c][word].y);
        mma_bf16(sums[c], second, x[c][word].z, x[c][word].w);
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

  template <int kRowBlocks, class Await>
  static __device__ __forceinline__ void multiply(Sum (&sums)[kSubs][kRowBlocks][4], const Pointers& p, const Matrix& m,
                                                  int tile, int part, int parts, const uint8_t* const (&x)[kRowBlocks],
                                                  int, uint8_t* shared, const Await& await_x) {
    const int lane = threadIdx.x % 32, tiles = m.in / marlin::kTileK, spans = (tiles + kAhead - 1) / kAhead;
    const int begin = spans * part / parts, end = spans * (part + 1) / parts, bytes = span_bytes(m);
    // Sums are scaled where a group ends, and at the end of a span of a longer one; all these are powers of two.
    const int last_of_group = (m.group_tiles > 0 ? min(m.group_tiles, kAhead) : kAhead) - 1;
    uint32_t next_x[kAhead][kRowBlocks][2];
    for (int i = 0; i + 1 < m.stages; ++i) {
      if (begin + i < end) fetch(shared + i * bytes + lane * 16, p, m, tile, (begin + i) * kAhead, lane);
      cp_async_commit();
    }
    await_x();
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
