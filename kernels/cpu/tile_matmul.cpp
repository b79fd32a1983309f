// The product of tile_matmul.h. AMX: two blocks of rows of A with a panel of B, in four accumulators. AVX-512: half a
// block of rows with a panel, in sixteen.
#include "kernels/cpu/tile_matmul.h"

#include <algorithm>
#include <cstring>

#include "kernels/cpu/tile_registers.h"
#include "src/core/error.h"

namespace fewbit::cpu {

#ifdef FEWBIT_TILES
namespace {

constexpr int64_t kHalf = 512, kTile = 2 * kHalf;  // values of 32 x 16 and of 32 x 32

// Registers 0 to 3 hold sums and 4 and 5 A, of so many rows; 6 and 7 hold B.
struct alignas(64) MatmulShapes {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t column_bytes[16] = {};
  uint8_t rows[16] = {};
  explicit MatmulShapes(int64_t left_rows) {
    for (int t = 0; t < 8; ++t) {
      rows[t] = static_cast<uint8_t>(t < 6 ? left_rows : 16);
      column_bytes[t] = 64;
    }
  }
};

// Two whole blocks of rows of A, or one or what is left of one.
template <bool kTwo>
FEWBIT_TILE_TARGET void multiply(const LeftRows& a, const uint16_t* rows, const uint16_t* b, int64_t tiles, float* c,
                                 int64_t ldc) {
  _tile_zero(0);
  _tile_zero(1);
  if constexpr (kTwo) {
    _tile_zero(2);
    _tile_zero(3);
  }
  for (int64_t t = 0; t < tiles; ++t) {
    _tile_loadd(4, rows + t * a.tile, 2 * a.row);
    _tile_loadd(6, b + t * kTile, 64);
    _tile_dpbf16ps(0, 4, 6);
    _tile_loadd(7, b + t * kTile + kHalf, 64);
    _tile_dpbf16ps(1, 4, 7);
    if constexpr (kTwo) {
      _tile_loadd(5, rows + a.block + t * a.tile, 2 * a.row);
      _tile_dpbf16ps(2, 5, 6);
      _tile_dpbf16ps(3, 5, 7);
    }
  }
  _tile_stored(0, c, 4 * ldc);
  _tile_stored(1, c + 16, 4 * ldc);
  if constexpr (kTwo) {
    _tile_stored(2, c + 16 * ldc, 4 * ldc);
    _tile_stored(3, c + 16 * ldc + 16, 4 * ldc);
  }
}

constexpr int64_t kVectorRows = 8;  // of A, with a panel of B in two registers each

// kRows rows of A with a panel of B: a pair of A's values, sixteen times, with sixteen columns' pairs of B.
template <int kRows>
FEWBIT_TILE_TARGET void multiply_rows(const LeftRows& a, const uint16_t* rows, const uint16_t* b, int64_t tiles,
                                      float* c, int64_t ldc) {
  __m512 sum[kRows][2];
  for (auto& row : sum) row[0] = row[1] = _mm512_setzero_ps();
  for (int64_t t = 0; t < tiles; ++t, rows += a.tile, b += kTile)
    for (int64_t pair = 0; pair < kTileDepth; pair += 2) {
      const auto first = (__m512bh)_mm512_loadu_si512(b + pair * 16);
      const auto second = (__m512bh)_mm512_loadu_si512(b + kHalf + pair * 16);
      for (int64_t r = 0; r < kRows; ++r) {
        int32_t both = 0;
        std::memcpy(&both, rows + r * a.row + pair, sizeof both);
        const auto value = (__m512bh)_mm512_set1_epi32(both);
        sum[r][0] = _mm512_dpbf16_ps(sum[r][0], value, first);
        sum[r][1] = _mm512_dpbf16_ps(sum[r][1], value, second);
      }
    }
  for (int64_t r = 0; r < kRows; ++r)
    for (int64_t half = 0; half < 2; ++half) _mm512_storeu_ps(c + r * ldc + 16 * half, sum[r][half]);
}

void matmul_in_vectors(const LeftRows& a, int64_t m, const RightTiles& b, TileRange range, float* c, int64_t ldc) {
  using Multiply = void (*)(const LeftRows&, const uint16_t*, const uint16_t*, int64_t, float*, int64_t);
  static constexpr Multiply kMultiply[kVectorRows] = {multiply_rows<1>, multiply_rows<2>, multiply_rows<3>,
                                                      multiply_rows<4>, multiply_rows<5>, multiply_rows<6>,
                                                      multiply_rows<7>, multiply_rows<8>};
  for (int64_t p = range.p0; p < range.p1; ++p)
    for (int64_t r = 0; r < m; r += kVectorRows)
      kMultiply[std::min(kVectorRows, m - r) - 1](a, a.data + r / kBlockRows * a.block + r % kBlockRows * a.row,
                                                  b.data + (p * whole_tiles(b.k) + range.t0) * kTile,
                                                  range.t1 - range.t0, c + r * ldc + (p - range.p0) * kPanelCols, ldc);
  written();
}

}  // namespace

FEWBIT_TILE_TARGET void pack_right(const bf16* b, int64_t ld, int64_t k, int64_t n, int64_t p0, int64_t p1,
                                   uint16_t* to) {
  const auto* values = reinterpret_cast<const uint16_t*>(b);
  const int64_t tiles = whole_tiles(k);
  for (int64_t p = p0; p < p1; ++p)
    for (int64_t i = 0; i < tiles * kTileDepth; i += 2) {
      uint16_t* at = to + (p * tiles + i / kTileDepth) * kTile + i % kTileDepth * 16;
      for (int64_t half = 0; half < 2; ++half) {
        const int64_t col = p * kPanelCols + half * 16, cols = std::clamp<int64_t>(n - col, 0, 16);
        const auto mask = static_cast<__mmask16>((1u << cols) - 1);
        const __m256i even = _mm256_maskz_loadu_epi16(i < k ? mask : __mmask16{0}, values + i * ld + col);
        const __m256i odd = _mm256_maskz_loadu_epi16(i + 1 < k ? mask : __mmask16{0}, values + (i + 1) * ld + col);
        const __m512i pair =
            _mm512_or_si512(_mm512_cvtepu16_epi32(even), _mm512_slli_epi32(_mm512_cvtepu16_epi32(odd), 16));
        _mm512_storeu_si512(at + half * kHalf, pair);
      }
    }
  written();
}

FEWBIT_TILE_TARGET void pack_right_transposed(const bf16* b, int64_t ld, int64_t k, int64_t n, int64_t p0, int64_t p1,
                                              uint16_t* to) {
  FEWBIT_ASSERT(k % kTileDepth == 0);
  const int64_t tiles = k / kTileDepth;
  for (int64_t p = p0; p < p1; ++p)
    for (int64_t t = 0; t < tiles; ++t)
      for (int64_t half = 0; half < 2; ++half) {
        __m512i r[16];
        for (int64_t i = 0; i < 16; ++i) {
          const int64_t row = p * kPanelCols + half * 16 + i;
          r[i] = row < n ? _mm512_loadu_si512(b + row * ld + t * kTileDepth) : _mm512_setzero_si512();
        }
        transpose16(r);
        uint16_t* at = to + (p * tiles + t) * kTile + half * kHalf;
        for (int64_t i = 0; i < 16; ++i) _mm512_storeu_si512(at + i * 32, r[i]);
      }
  written();
}

// A tile of B is 16 pairs of k by 16 columns; the tile of its transpose is the same square turned.
FEWBIT_TILE_TARGET void transpose_right(const RightTiles& b, int64_t p0, int64_t p1, uint16_t* to) {
  const int64_t tiles = whole_tiles(b.k);
  for (int64_t p = p0; p < p1; ++p)
    for (int64_t half = 0; half < 2; ++half)
      for (int64_t t = 0; t < tiles; ++t) {
        const uint16_t* from = b.data + (p * tiles + t) * kTile + half * kHalf;
        __m512i r[16];
        for (int64_t i = 0; i < 16; ++i) r[i] = _mm512_loadu_si512(from + i * 32);
        transpose16(r);
        uint16_t* at = to + ((2 * p + half) * tiles + t) * kHalf;
        for (int64_t i = 0; i < 16; ++i) _mm512_storeu_si512(at + i * 32, r[i]);
      }
  written();
}

LeftRows transposed_rows(const RightTiles& b, const uint16_t* transposed) {
  return {.data = transposed, .block = whole_tiles(b.k) * kHalf, .row = kTileDepth, .tile = kHalf};
}

FEWBIT_TILE_TARGET void tile_matmul(const LeftRows& a, int64_t m, const RightTiles& b, TileRange range, float* c,
                                    int64_t ldc) {
  if (tile_unit() != TileUnit::amx) return matmul_in_vectors(a, m, b, range, c, ldc);
  const int64_t tiles = whole_tiles(b.k), blocks = m / kBlockRows, pairs = blocks / 2, rest = m % kBlockRows;
  const auto each_panel = [&](const auto& product) FEWBIT_TILE_TARGET {
    for (int64_t p = range.p0; p < range.p1; ++p)
      product(b.data + (p * tiles + range.t0) * kTile, c + (p - range.p0) * kPanelCols);
  };
  const int64_t depth = range.t1 - range.t0;
  const MatmulShapes whole(kBlockRows), part(std::max<int64_t>(1, rest));
  written();
  _tile_loadconfig(&whole);
  each_panel([&](const uint16_t* panel, float* to) FEWBIT_TILE_TARGET {
    for (int64_t i = 0; i < pairs; ++i)
      multiply<true>(a, a.data + 2 * i * a.block, panel, depth, to + 2 * i * kBlockRows * ldc, ldc);
    if (blocks % 2 != 0)
      multiply<false>(a, a.data + (blocks - 1) * a.block, panel, depth, to + (blocks - 1) * kBlockRows * ldc, ldc);
  });
  if (rest > 0) {
    _tile_loadconfig(&part);
    each_panel([&](const uint16_t* panel, float* to) FEWBIT_TILE_TARGET {
      multiply<false>(a, a.data + blocks * a.block, panel, depth, to + blocks * kBlockRows * ldc, ldc);
    });
  }
  _tile_release();
  written();
}

#else

void pack_right(const bf16*, int64_t, int64_t, int64_t, int64_t, int64_t, uint16_t*) {
  bug("no products of bf16 on this machine");
}
void pack_right_transposed(const bf16*, int64_t, int64_t, int64_t, int64_t, int64_t, uint16_t*) {
  bug("no products of bf16 on this machine");
}
void transpose_right(const RightTiles&, int64_t, int64_t, uint16_t*) { bug("no products of bf16 on this machine"); }
LeftRows transposed_rows(const RightTiles&, const uint16_t*) { bug("no products of bf16 on this machine"); }
void tile_matmul(const LeftRows&, int64_t, const RightTiles&, TileRange, float*, int64_t) {
  bug("no products of bf16 on this machine");
}

#endif

}  // namespace fewbit::cpu
