#pragma once
// How a warp multiplies a tile of an expert's outputs, over a part of k, with up to 16 rows of x that lie in device
// memory. The weights are the 16-row operand of the tensor cores and stream past the L1, each read once; x, which all
// tiles read, comes from the caches.
//
// A form gives
//   Sum       the type of a sum
//   kSubs     sub-tiles of 16 outputs in a tile
//   kXBytes   bytes of a value of x
//   multiply  sums += the products of part `part` of `parts` along k. x: this lane's row of each block of 8 rows. With
//             lane = 4 g + t, sums[j][c][i] belong to output 16 j + g + 8 (i / 2) and row 8 c + 2 t + i % 2
//   value     of a finished sum
#include "kernels/decode/few_experts_job.cuh"
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
  static constexpr int kStepBytes = 64;  // of a row: what four lanes take at once
  static constexpr int kAhead = 4;       // steps under way
  static_assert(Format::kXBytes == Format::kCodeBytes);

  template <int kRowBlocks>
  static __device__ __forceinline__ void multiply(Sum (&sums)[kSubs][kRowBlocks][4], const Pointers& p, const Matrix& m,
                                                  int tile, int part, int parts,
                                                  const uint8_t* const (&x)[kRowBlocks]) {
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

// Words of the Marlin layout, codes minus zero points as exact bf16; the sums of a group are scaled where it ends.
template <int kBits>
struct PackedForm {
  using Sum = float;
  static constexpr int kSubs = marlin::kSubTiles, kXBytes = 2;
  static constexpr int kAhead = 32 / kBits;  // k-tiles under way

  template <int kRowBlocks>
  static __device__ __forceinline__ void multiply(Sum (&sums)[kSubs][kRowBlocks][4], const Pointers& p, const Matrix& m,
                                                  int tile, int part, int parts,
                                                  const uint8_t* const (&x)[kRowBlocks]) {
    const int lane = threadIdx.x % 32, tiles = m.in / marlin::kTileK, spans = (tiles + kAhead - 1) / kAhead;
    const int row_words = m.out * kBits / 2;
    const auto* words_at = reinterpret_cast<const uint32_t*>(p.w) + tile * marlin::tile_words(kBits) + lane * kBits;
    // Sums are scaled where a group ends, and at the end of a span of a longer one; all these are powers of two.
    const int last_of_group = (m.group_tiles > 0 ? min(m.group_tiles, kAhead) : kAhead) - 1;
    // The words of a span are on their way while those before it are multiplied, and so are its scales and zero points.
    const auto load = [&](uint32_t(&words)[kAhead][kBits], int first) {
      prefetch_group(p, m, first + lane, tile, lane < kAhead && first + lane < tiles);
#pragma unroll
      for (int i = 0; i < kAhead; ++i)
        if (first + i < tiles)
#pragma unroll
          for (int q = 0; q < kBits / 4; ++q)
            *reinterpret_cast<uint4*>(&words[i][4 * q]) =
                load_once(words_at + static_cast<int64_t>(first + i) * row_words + 4 * q);
    };
    const int end = spans * (part + 1) / parts;
    uint32_t next[kAhead][kBits];
    if (spans * part / parts < end) load(next, spans * part / parts * kAhead);
    for (int span = spans * part / parts; span < end; ++span) {
      const int first = span * kAhead, left = tiles - first;
      uint32_t words[kAhead][kBits];
#pragma unroll
      for (int i = 0; i < kAhead; ++i)
#pragma unroll
        for (int q = 0; q < kBits; ++q) words[i][q] = next[i][q];
      if (span + 1 < end) load(next, first + kAhead);
      float part_sums[kSubs][kRowBlocks][4] = {};
      LaneZeros<kBits> zeros;
      alignas(16) __half scales[8];
#pragma unroll
      for (int i = 0; i < kAhead; ++i) {
        if (i >= left) break;
        if ((i & last_of_group) == 0) take_group(scales, zeros, p, m, first + i, tile, lane);
        uint32_t b[kRowBlocks][2];
#pragma unroll
        for (int c = 0; c < kRowBlocks; ++c) {
          const auto* at = x[c] + (first + i) * (2 * marlin::kTileK) + lane % 4 * 4;
          b[c][0] = *reinterpret_cast<const uint32_t*>(at);
          b[c][1] = *reinterpret_cast<const uint32_t*>(at + 16);
        }
#pragma unroll
        for (int j = 0; j < kSubs; ++j) {
          uint32_t a[4];
          fragment<kBits>(a, words[i], j, zeros);
#pragma unroll
          for (int c = 0; c < kRowBlocks; ++c) mma_bf16(part_sums[j][c], a, b[c][0], b[c][1]);
        }
        if ((i & last_of_group) == last_of_group || i + 1 == left) add_scaled(sums, part_sums, scales);
      }
    }
  }
  static __device__ __forceinline__ float value(Sum sum, const Pointers&, int, const float*) { return sum; }

 private:
  // Brings the scales and zero points of the group of k-tile `k_tile` near, where asked. Per channel they are few, and
  // read once.
  static __device__ __forceinline__ void prefetch_group(const Pointers& p, const Matrix& m, int k_tile, int tile,
                                                        bool asked) {
    if (!asked || m.group_tiles == 0) return;
    const int64_t group = k_tile / m.group_tiles;
    const auto* s = static_cast<const __half*>(p.scales) + group * m.out + tile * marlin::kTileN;
    asm volatile("prefetch.global.L1 [%0];" ::"l"(s));
    if (p.zeros) {
      const uint32_t* z = p.zeros + group * (m.out * kBits / 32) + tile * (2 * kBits);
      asm volatile("prefetch.global.L1 [%0];" ::"l"(z));
    }
  }
  // The lane's scales and zero points of the group of k-tile `k_tile`.
  static __device__ __forceinline__ void take_group(__half (&scales)[8], LaneZeros<kBits>& zeros, const Pointers& p,
                                                    const Matrix& m, int k_tile, int tile, int lane) {
    const bool grouped = m.group_tiles > 0;
    const int64_t group = grouped ? k_tile / m.group_tiles : 0;
    const auto* s = static_cast<const __half*>(p.scales) + group * m.out + tile * marlin::kTileN;
    if (grouped)
      *reinterpret_cast<uint4*>(scales) = *reinterpret_cast<const uint4*>(s + marlin::fragment_scale(lane, 0, true));
    else
#pragma unroll
      for (int i = 0; i < 8; ++i) scales[i] = s[marlin::fragment_scale(lane, i, false)];
    if (p.zeros)
      zeros.set_words(p.zeros + group * (m.out * kBits / 32) + tile * (2 * kBits), lane);
    else
      zeros.set_middle();
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
