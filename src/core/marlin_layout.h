#pragma once
// The Marlin index map, the one home of it (docs/formats/marlin.md has the picture). constexpr and
// host/device: formats/ packs with it, kernels/ read with it.
//
// A linear is y = x W^T with W [N = out, K = in]; the layout tiles W^T in 16 (k) x 64 (n). A tile is 128
// words at 4 bits and 256 words at 8 bits; tiles are stored k-tile major, so the tensor `B` is I32 [K/16,
// N*16*bits/32]. Inside a tile, the words follow the mma.m16n8k16 fragment: thread i of a warp owns column
// i/4 and the row pairs 2(i%4), 2(i%4)+1 and the same plus 8 of each 16x16 sub-tile j. Source of the 4-bit
// map: IST-DASLab/marlin; of the 8-bit map and the zero points: vLLM's gptq_marlin_repack.
#include <cstdint>

#include "src/core/host_device.h"

namespace fewbit::marlin {

inline constexpr int kTileK = 16;
inline constexpr int kTileN = 64;

// Where one code lies: word `col` of k-tile row `row`, field `field` (bits [field*bits, +bits)).
struct WordPos {
  int64_t row, col;
  int field;
};
struct Element {
  int64_t k, n;
};

FEWBIT_HD constexpr int64_t words_per_row(int64_t n, int bits) { return n * kTileK * bits / 32; }

FEWBIT_HD constexpr WordPos word_of(int64_t k, int64_t n, int bits) {
  const int64_t r = k % 16;
  const int64_t i = 4 * (n % 8) + (r % 8) / 2;
  const int64_t j = (n % 64) / 16;
  const int64_t h = (n % 16) / 8;
  if (bits == 4) return {k / 16, 128 * (n / 64) + 4 * i + j, static_cast<int>((r / 8) + 2 * h + 4 * (r % 2))};
  return {k / 16, 256 * (n / 64) + 8 * i + 2 * j + h, static_cast<int>((r / 8) + 2 * (r % 2))};
}

FEWBIT_HD constexpr Element element_of(int64_t row, int64_t col, int field, int bits) {
  if (bits == 4) {
    const int64_t i = (col % 128) / 4, j = col % 4;
    return {16 * row + 2 * (i % 4) + (field >> 2) + 8 * (field & 1),
            64 * (col / 128) + 16 * j + i / 4 + 8 * ((field >> 1) & 1)};
  }
  const int64_t w = col % 256, i = w / 8, j = (w / 2) % 4, h = w % 2;
  return {16 * row + 2 * (i % 4) + (field >> 1) + 8 * (field & 1), 64 * (col / 256) + 16 * j + 8 * h + i / 4};
}

// The scale of output n stands at this column of row g of `s`, F16 [G, N]. `grouped` is (G > 1).
FEWBIT_HD constexpr int64_t scale_column(int64_t n, bool grouped) {
  if (grouped) return (n / 64) * 64 + (n % 8) * 8 + (n % 64) / 8;  // 8x8 transpose in each run of 64
  const int64_t r = n % 32;
  return (n / 32) * 32 + 8 * ((r % 8) / 2) + 2 * (r / 8) + r % 2;
}

// The zero point of output n: word and field of row g of `z`, I32 [G, N*bits/32].
FEWBIT_HD constexpr WordPos zero_of(int64_t g, int64_t n, int bits) {
  const int64_t p = (n % 8) * 8 + (n % 64) / 8;  // position in the run of 64 after the 8x8 transpose
  if (bits == 4) {
    const int64_t r = p % 8;  // interleave {0,2,4,6,1,3,5,7}: value r stands in field (r>>1) | ((r&1)<<2)
    return {g, (n / 64) * 8 + p / 8, static_cast<int>((r >> 1) | ((r & 1) << 2))};
  }
  const int64_t r = p % 4;  // interleave {0,2,1,3}
  return {g, (n / 64) * 16 + p / 4, static_cast<int>((r >> 1) | ((r & 1) << 1))};
}

// Shapes the layout and our kernels take; the published kernel wants more (N % 256 == 0, K % 128 == 0).
FEWBIT_HD constexpr bool admits(int64_t n, int64_t k, int64_t group, int bits) {
  return n % kTileN == 0 && k % kTileK == 0 && (bits == 4 || bits == 8) &&
         (group == -1 || group == k || ((group == 32 || group == 64 || group == 128) && k % group == 0));
}
FEWBIT_HD constexpr bool published_kernel_admits(int64_t n, int64_t k, int64_t group, int bits) {
  return bits == 4 && n % 256 == 0 && k % 128 == 0 && (group == -1 || group == k || group == 128);
}

static_assert(word_of(1, 0, 4).field == 4 && word_of(8, 0, 4).field == 1 && word_of(0, 8, 4).field == 2);
static_assert(element_of(0, 0, 5, 4).k == 9 && element_of(0, 0, 5, 4).n == 0);

}  // namespace fewbit::marlin
