// The product of tile_product.h through AMX: tiles of 16 outputs x 32 columns of the weight times 32 columns x 16 rows
// of x.
#include "kernels/cpu/tile_units.h"

#include <algorithm>

#include "kernels/cpu/cpu_rows.h"
#include "kernels/cpu/cpu_tiles.h"
#include "kernels/cpu/tile_registers.h"
#include "src/core/parallel.h"

namespace fewbit::cpu {

#ifdef FEWBIT_TILES
namespace {

constexpr int64_t kTileRows = 16;                   // rows of x in a tile, outputs in one
constexpr int64_t kXTile = kTileRows * kTileCols;   // values of a tile of x
constexpr int64_t kWTile = kBlockOuts * kTileCols;  // values of the tiles of a block
constexpr int64_t kPanel = 128;                     // columns whose codes come out of their words together
constexpr int64_t kStripValues = int64_t{1} << 19;  // of x in a strip: 1 MiB, half of a core's L2
constexpr int64_t kPieceBytes = int64_t{1} << 18;   // of a weight that a thread takes at once for few rows
constexpr int64_t kAheadTiles = 8;                  // how far ahead a dense weight is prefetched

// The shapes of the tile registers: 0 to 3 sums, 4 and 5 the weight, 6 and 7 x, all of `rows` rows of x.
struct alignas(64) TileShapes {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t column_bytes[16] = {};
  uint8_t rows[16] = {};
  explicit TileShapes(int64_t x_rows) {
    for (int t = 0; t < 8; ++t) {
      rows[t] = 16;
      column_bytes[t] = static_cast<uint16_t>(t == 4 || t == 5 ? 64 : 4 * x_rows);
    }
  }
};

// Tiles of x: [ceil(rows / 16)][in / 32][16 pairs of columns][width rows][2], zeros past the last row. width = the rows
// where they are at most 16, else 16.
FEWBIT_TILE_TARGET void pack_rows(ConstTensorView x, ColumnOrder order, int64_t width, int64_t block, uint16_t* to) {
  const int64_t in = x.cols(), r0 = block * kTileRows, count = std::min(kTileRows, x.rows() - r0);
  for (int64_t tile = 0; tile < in / kTileCols; ++tile, to += width * kTileCols) {
    __m512i r[16];
    for (int64_t i = 0; i < kTileRows; ++i)
      r[i] = i < count ? x_tile_row(x.as<bf16>() + (r0 + i) * in, tile, order) : _mm512_setzero_si512();
    if (width == 1) {
      _mm512_storeu_si512(to, r[0]);
      continue;
    }
    transpose16(r);
    const auto mask = static_cast<__mmask16>((1u << width) - 1);
    for (int64_t i = 0; i < 16; ++i) _mm512_mask_storeu_epi32(to + i * 2 * width, mask, r[i]);
  }
}

// Sums [32 outputs][16 rows of x] of one tile of x, or [32] of one row; those of two groups in turn.
struct Sums {
  alignas(64) float tile[2][kBlockOuts * kTileRows];
  alignas(64) float total[kBlockOuts * kTileRows];
};

int64_t groups_of(const TileWeight& w) { return w.scales ? (w.in + w.group - 1) / w.group : 1; }

// total += scale * tile, or total = tile where there are no scales.
FEWBIT_TILE_TARGET inline void add_group(Sums& s, const float* tile, const TileWeight& w, int64_t o, int64_t g) {
  if (!w.scales) {
    std::copy_n(tile, kBlockOuts * kTileRows, s.total);
    return;
  }
  const int64_t groups = groups_of(w), last = w.out - 1;
  for (int64_t i = 0; i < kBlockOuts; ++i) {
    const __m512 scale = _mm512_set1_ps(w.scales[std::min(o + i, last) * groups + g]);
    float* at = s.total + i * kTileRows;
    _mm512_store_ps(at, _mm512_fmadd_ps(_mm512_load_ps(tile + i * kTileRows), scale, _mm512_load_ps(at)));
  }
}

// The same of one row of x, whose outputs stand side by side, and so must the scales of a group: those of sixteen
// groups are turned at once.
class OneRowGroups {
 public:
  OneRowGroups(const TileWeight& w, int64_t o) : w_(w), o_(o), groups_(groups_of(w)) {}
  FEWBIT_TILE_TARGET void add(Sums& s, const float* tile, int64_t g) {
    if (!w_.scales) {
      std::copy_n(tile, kBlockOuts, s.total);
      return;
    }
    if (g % 16 == 0) turn(g);
    for (int64_t i = 0; i < kBlockOuts; i += 16)
      _mm512_store_ps(s.total + i, _mm512_fmadd_ps(_mm512_load_ps(tile + i), _mm512_load_ps(scales_[g % 16] + i),
                                                   _mm512_load_ps(s.total + i)));
  }

 private:
  FEWBIT_TILE_TARGET void turn(int64_t g) {
    const auto mask = static_cast<__mmask16>((1u << std::min<int64_t>(16, groups_ - g)) - 1);
    for (int64_t half = 0; half < kBlockOuts; half += 16) {
      __m512i r[16];
      for (int64_t i = 0; i < 16; ++i)
        r[i] = _mm512_maskz_loadu_epi32(mask, w_.scales + std::min(o_ + half + i, w_.out - 1) * groups_ + g);
      transpose16(r);
      for (int64_t i = 0; i < 16; ++i) _mm512_store_si512(scales_[i] + half, r[i]);
    }
  }
  const TileWeight& w_;
  const int64_t o_, groups_;
  alignas(64) float scales_[16][kBlockOuts];
};

struct Output {
  const float* row_scales;
  ConstTensorView bias;
  TensorView y;
};

// The totals of a block of outputs to `count` rows of y.
FEWBIT_TILE_TARGET void store_sums(const Sums& s, int64_t o, int64_t out, int64_t row, int64_t count, int64_t width,
                                   const Output& to) {
  alignas(64) float by_row[kTileRows * kBlockOuts];
  if (width == 1) {
    std::copy_n(s.total, kBlockOuts, by_row);
  } else {
    for (int64_t half = 0; half < 2; ++half) {
      __m512i r[16];
      for (int64_t i = 0; i < 16; ++i) r[i] = _mm512_load_si512(s.total + (half * 16 + i) * kTileRows);
      transpose16(r);
      for (int64_t i = 0; i < 16; ++i) _mm512_store_si512(by_row + i * kBlockOuts + half * 16, r[i]);
    }
  }
  for (int64_t i = 0; i < count; ++i) {
    float* values = by_row + i * kBlockOuts;
    if (to.row_scales)
      for (int64_t k = 0; k < kBlockOuts; ++k) values[k] *= to.row_scales[row + i];
    store_row(values, to.bias, o, std::min(out, o + kBlockOuts), to.y, row + i);
  }
}

// Those of outputs [o + i0, o + i1) of a block.
FEWBIT_TILE_TARGET void make_tiles(const TileWeight& w, int64_t o, int64_t i0, int64_t i1, int64_t c0, int64_t c1,
                                   uint16_t* to) {
  if (w.dense)
    for (int64_t i = i0; i < i1; ++i) {
      const auto* row = reinterpret_cast<const uint16_t*>(w.dense) + std::min(o + i, w.out - 1) * w.in;
      for (int64_t t = 0; t < (c1 - c0) / kTileCols; ++t)
        _mm512_store_si512(to + t * kWTile + i * kTileCols, _mm512_loadu_si512(row + c0 + t * kTileCols));
    }
  else
    w.fill(o, i0, i1, c0, c1, to);
  written();
}

// The tiles of a block of outputs, one behind the other: where a weight is dense, as they lie in it; else made, a panel
// at a time, while the unit multiplies those of the panel before.
class BlockTiles {
 public:
  FEWBIT_TILE_TARGET BlockTiles(const TileWeight& w, int64_t o)
      : w_(w), o_(o), lies_(w.dense && o + kBlockOuts <= w.out) {
    if (!lies_) make_tiles(w_, o_, 0, kBlockOuts, 0, std::min(w_.in, kPanel), room_[0]);
  }
  int64_t stride() const { return lies_ ? w_.in * 2 : 64; }  // bytes from an output to the next
  FEWBIT_TILE_TARGET const uint16_t* at(int64_t t) const {
    if (!lies_) return room_[t / kTiles % 2] + t % kTiles * kWTile;
    const auto* a = reinterpret_cast<const uint16_t*>(w_.dense) + o_ * w_.in + t * kTileCols;
    const int64_t tiles = w_.in / kTileCols;
    const int64_t ahead = t + kAheadTiles < tiles ? kAheadTiles : kAheadTiles - tiles + kBlockOuts * tiles;
    for (int64_t i = 0; i < kBlockOuts; ++i) _mm_prefetch(a + i * w_.in + ahead * kTileCols, _MM_HINT_T0);
    return a;
  }
  // A quarter of the outputs of the next panel. To be called behind the products of every tile.
  FEWBIT_TILE_TARGET void make_ahead(int64_t t) {
    const int64_t c = (t / kTiles + 1) * kPanel;
    if (lies_ || c >= w_.in) return;
    constexpr int64_t kSome = kBlockOuts / kTiles;
    const int64_t first = t % kTiles * kSome;
    make_tiles(w_, o_, first, first + kSome, c, std::min(w_.in, c + kPanel), room_[c / kPanel % 2]);
  }

 private:
  static constexpr int64_t kTiles = kPanel / kTileCols;
  const TileWeight& w_;
  const int64_t o_;
  const bool lies_;
  alignas(64) uint16_t room_[2][kPanel * kBlockOuts];
};

// The names of tiles are literals of an instruction: the sums of even groups are in 0 and 1, those of odd ones in 2 and
// 3, so that a group need not wait for the sums of the one before, nor for them to be stored.
FEWBIT_TILE_TARGET inline void multiply_tile(const uint16_t* a, int64_t stride, const uint16_t* x, int64_t width,
                                             bool odd) {
  _tile_loadd(6, x, 4 * width);
  _tile_loadd(4, a, stride);
  _tile_loadd(5, reinterpret_cast<const char*>(a) + 16 * stride, stride);
  if (odd) {
    _tile_dpbf16ps(2, 4, 6);
    _tile_dpbf16ps(3, 5, 6);
  } else {
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 5, 6);
  }
}
FEWBIT_TILE_TARGET inline void zero_sums() {
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
}
// Sums begin at zero again then.
FEWBIT_TILE_TARGET inline void store_tiles(float* to, int64_t stride, bool odd) {
  char* second = reinterpret_cast<char*>(to) + 16 * stride;
  if (odd) {
    _tile_stored(2, to, stride);
    _tile_stored(3, second, stride);
    _tile_zero(2);
    _tile_zero(3);
  } else {
    _tile_stored(0, to, stride);
    _tile_stored(1, second, stride);
    _tile_zero(0);
    _tile_zero(1);
  }
  written();
}

// Up to 16 rows of x with a block of outputs.
FEWBIT_TILE_TARGET void multiply_few(const TileWeight& w, const uint16_t* x, int64_t width, int64_t o, Sums& s) {
  BlockTiles weight(w, o);
  OneRowGroups one_row(w, o);
  const auto add = [&](int64_t g) FEWBIT_TILE_TARGET {
    width == 1 ? one_row.add(s, s.tile[g % 2], g) : add_group(s, s.tile[g % 2], w, o, g);
  };
  const int64_t tiles = w.in / kTileCols, per_group = w.scales ? w.group / kTileCols : tiles;
  const int64_t stride = weight.stride(), sums_stride = 4 * (width == 1 ? 1 : kTileRows);
  std::fill_n(s.total, width == 1 ? kBlockOuts : kBlockOuts * kTileRows, 0.f);
  zero_sums();
  int64_t g = 0;
  for (int64_t t = 0; t < tiles; ++t) {
    multiply_tile(weight.at(t), stride, x + t * kTileCols * width, width, g % 2 != 0);
    weight.make_ahead(t);
    if ((t + 1) % per_group != 0 && t + 1 < tiles) continue;
    store_tiles(s.tile[g % 2], sums_stride, g % 2 != 0);
    if (g > 0) add(g - 1);  // whose sums have been stored for a while
    ++g;
  }
  add(g - 1);
}

// Two tiles of x with a block of outputs, whose tiles lie at `a`.
FEWBIT_TILE_TARGET void multiply_two(const TileWeight& w, const uint16_t* a, const uint16_t* x, int64_t o, Sums* s) {
  const int64_t tiles = w.in / kTileCols, per_group = w.scales ? w.group / kTileCols : tiles;
  const uint16_t* second = x + tiles * kXTile;
  for (int i = 0; i < 2; ++i) std::fill_n(s[i].total, kBlockOuts * kTileRows, 0.f);
  zero_sums();
  for (int64_t t = 0, g = 0; t < tiles; ++g) {
    for (const int64_t end = std::min(tiles, t + per_group); t < end; ++t) {
      _tile_loadd(6, x + t * kXTile, 64);
      _tile_loadd(4, a + t * kWTile, 64);
      _tile_dpbf16ps(0, 4, 6);
      _tile_loadd(5, a + t * kWTile + kWTile / 2, 64);
      _tile_dpbf16ps(1, 5, 6);
      _tile_loadd(7, second + t * kXTile, 64);
      _tile_dpbf16ps(2, 4, 7);
      _tile_dpbf16ps(3, 5, 7);
    }
    for (int i = 0; i < 2; ++i) store_tiles(s[i].tile[0], 64, i != 0);
    add_group(s[0], s[0].tile[0], w, o, g);
    add_group(s[1], s[1].tile[0], w, o, g);
  }
}

// The tiles of a block of outputs for many rows.
const uint16_t* block_tiles(const TileWeight& w, int64_t o) {
  uint16_t* room = aligned(scratch(Scratch::w, kBlockOuts * w.in / 2 + 16));
  make_tiles(w, o, 0, kBlockOuts, 0, w.in, room);
  return room;
}

void few_rows(const TileWeight& w, const uint16_t* x, int64_t rows, const Output& to) {
  const TileShapes shapes(rows);
  const int64_t blocks = (w.out + kBlockOuts - 1) / kBlockOuts;
  const int64_t grain = std::max<int64_t>(1, kPieceBytes / (kBlockOuts * w.row_bytes));
  parallel_for(blocks, grain, [&](int64_t begin, int64_t end) FEWBIT_TILE_TARGET {
    _tile_loadconfig(&shapes);
    Sums sums;
    for (int64_t b = begin; b < end; ++b) {
      multiply_few(w, x, rows, b * kBlockOuts, sums);
      store_sums(sums, b * kBlockOuts, w.out, 0, rows, rows, to);
    }
    _tile_release();
  });
}

void many_rows(const TileWeight& w, const uint16_t* x, int64_t rows, const Output& to) {
  const TileShapes shapes(kTileRows);
  const int64_t blocks = (w.out + kBlockOuts - 1) / kBlockOuts, pairs = (rows + 2 * kTileRows - 1) / (2 * kTileRows);
  const int64_t strip = std::max<int64_t>(1, kStripValues / (2 * kTileRows * w.in));  // pairs of tiles of x
  const int64_t strips = (pairs + strip - 1) / strip;
  parallel_for(strips * blocks, 1, [&](int64_t unit, int64_t) FEWBIT_TILE_TARGET {
    const int64_t o = unit % blocks * kBlockOuts, first = unit / blocks * strip;
    _tile_loadconfig(&shapes);
    const uint16_t* a = block_tiles(w, o);
    Sums sums[2];
    for (int64_t p = first; p < std::min(pairs, first + strip); ++p) {
      multiply_two(w, a, x + p * 2 * kTileRows * w.in, o, sums);
      for (int64_t half = 0; half < 2; ++half) {
        const int64_t row = (2 * p + half) * kTileRows, count = std::min(kTileRows, rows - row);
        if (count > 0) store_sums(sums[half], o, w.out, row, count, kTileRows, to);
      }
    }
    _tile_release();
  });
}

}  // namespace

void amx_product(ConstTensorView x, const TileWeight& w, const float* row_scales, ConstTensorView bias, TensorView y) {
  const int64_t rows = x.rows(), width = std::min(rows, kTileRows);
  // Whole pairs of tiles, so that the last one has a partner.
  const int64_t tiles = rows <= kTileRows ? 1 : (rows + 2 * kTileRows - 1) / (2 * kTileRows) * 2;
  uint16_t* packed = aligned(scratch(Scratch::x, tiles * width * w.in / 2 + 16));
  parallel_for(tiles, 2, [&](int64_t begin, int64_t end) {
    for (int64_t t = begin; t < end; ++t) pack_rows(x, w.order, width, t, packed + t * width * w.in);
  });
  written();
  const Output to{.row_scales = row_scales, .bias = bias, .y = y};
  rows <= kTileRows ? few_rows(w, packed, rows, to) : many_rows(w, packed, rows, to);
}

#endif

}  // namespace fewbit::cpu
