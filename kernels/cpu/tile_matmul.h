#pragma once
// C = A B in bf16 through AMX or AVX-512 (tile_product.h), of one thread: for products of activations with
// activations, as in attention and in sums over tokens. Weights have tile_product.h.
//
// An element of C is summed in f32 over k in order (AMX: 32 at a time, even and odd ones apart; AVX-512: by pairs): its
// bits depend on its row of A, its column of B and the unit alone. Values of a magnitude below 2^-126 count as zeros.
// All of it needs has_tiles().
#include <cstdint>

#include "src/core/half.h"

namespace fewbit::cpu {

// k of a tile, columns of B in a panel, rows of A in a block.
inline constexpr int64_t kTileDepth = 32, kPanelCols = 32, kBlockRows = 16;
constexpr int64_t whole_tiles(int64_t n) { return (n + kTileDepth - 1) / kTileDepth; }

// B [k, n] as [ceil(n / 32) panels][ceil(k / 32) tiles][1024], with zeros past k and n.
struct RightTiles {
  int64_t k = 0, n = 0;
  const uint16_t* data = nullptr;  // right_values(k, n) of them
};
constexpr int64_t right_values(int64_t k, int64_t n) { return whole_tiles(k) * whole_tiles(n) * 1024; }
// Panels [p0, p1) of B out of its rows, `ld` elements apart: of [k, n], or of its transpose [n, k], where k % 32 == 0.
void pack_right(const bf16* b, int64_t ld, int64_t k, int64_t n, int64_t p0, int64_t p1, uint16_t* to);
void pack_right_transposed(const bf16* b, int64_t ld, int64_t k, int64_t n, int64_t p0, int64_t p1, uint16_t* to);

// A [m, k] whose element (r, c) stands at data[r / 16 * block + r % 16 * row + c / 32 * tile + c % 32]: a matrix as it
// lies has block = 16 ld, row = ld and tile = 32. Columns from k to whole tiles are read too: anything finite.
struct LeftRows {
  const uint16_t* data = nullptr;
  int64_t block = 0, row = 0, tile = kTileDepth;
};
inline LeftRows left_rows(const bf16* a, int64_t ld) {
  return {.data = reinterpret_cast<const uint16_t*>(a), .block = kBlockRows * ld, .row = ld};
}
// The transpose of B as a left factor [n, k], right_values(k, n) in all: of panels [p0, p1).
void transpose_right(const RightTiles& b, int64_t p0, int64_t p1, uint16_t* to);
LeftRows transposed_rows(const RightTiles& b, const uint16_t* transposed);

// Tiles [t0, t1) of k and panels [p0, p1) of B: c [m, 32 (p1 - p0)] f32, rows `ldc` elements apart, is overwritten.
// Column 0 of `a` belongs to tile t0.
struct TileRange {
  int64_t p0 = 0, p1 = 0, t0 = 0, t1 = 0;
};
void tile_matmul(const LeftRows& a, int64_t m, const RightTiles& b, TileRange, float* c, int64_t ldc);

}  // namespace fewbit::cpu
