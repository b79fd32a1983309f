// The product of tile_product.h in AVX512-BF16. A register of a weight is a quad: four outputs x eight columns; one of
// x is eight columns of a row, four times. So a sum has four lanes an output: few enough that a group's scale and the
// last additions cost little, and rows of codes become quads by few shuffles.
#include <algorithm>
#include <vector>

#include "kernels/cpu/cpu_rows.h"
#include "kernels/cpu/quad_loops.h"
#include "kernels/cpu/tile_units.h"
#include "src/core/parallel.h"

namespace fewbit::cpu {

#ifdef FEWBIT_TILES
namespace {

constexpr int64_t kXRows = 6;                      // rows of x in a block: 6 x 4 quads are 24 registers of sums
constexpr int64_t kQuads = kPanelOuts / 4;         // of a panel
constexpr int64_t kPanels = 2;                     // of a unit of work: a cache line of y in bf16
constexpr int64_t kStripRows = 252;                // of x in a unit, at most: enough that making a panel costs little
constexpr int64_t kFirstRows = 4;                  // of x beside which the panel of a dense weight is made
constexpr int64_t kPieceBytes = int64_t{1} << 17;  // of a weight that a thread takes at once for few rows

// Rows of x that a unit takes, and those of its tiles: where so many are left a dense weight's first has kFirstRows.
int64_t strip_rows(int64_t rows) {
  const int64_t strips = (rows + kStripRows - 1) / kStripRows;
  return ((rows + strips - 1) / strips + kXRows - 1) / kXRows * kXRows;
}
bool makes_panel(const TileWeight& w, int64_t done, int64_t left) { return w.dense && done == 0 && left >= kFirstRows; }
int64_t tile_rows(const TileWeight& w, int64_t done, int64_t left) {
  return makes_panel(w, done, left) ? kFirstRows : std::min(kXRows, left);
}

class DenseQuad : QuadRows {
 public:
  static constexpr int kTiles = 1;
  int64_t in, segment;
  FEWBIT_QUAD_INLINE DenseQuad(const TileWeight& w, int64_t o)
      : QuadRows(w.dense, o, w.out, 2 * w.in), in(w.in), segment(w.in) {}
  FEWBIT_QUAD_INLINE void load(int64_t c, int64_t, int quads) {
    for (int i = 0; i < 4; ++i) {
      at_[i] = row[i] + 2 * c;
      prefetch(i, 2 * c, quads);
    }
  }
  FEWBIT_QUAD_INLINE void tile(int, __m512i* to) const {
    const __m512i r[4] = {_mm512_loadu_si512(at_[0]), _mm512_loadu_si512(at_[1]), _mm512_loadu_si512(at_[2]),
                          _mm512_loadu_si512(at_[3])};
    by_quarters(r, to);
  }
  FEWBIT_QUAD_INLINE __m512 scale(int64_t) const { return _mm512_setzero_ps(); }

 private:
  const uint8_t* at_[4];
};

struct Output {
  const float* scales;  // [out], or null
  const float* row_scales;
  ConstTensorView bias;
  TensorView y;
};

// The sums of outputs [o, o + count), 16 at most, to row `row` of y.
FEWBIT_QUAD_INLINE void store(const Output& to, __m512 sums, int64_t row, int64_t o, int64_t count) {
  const auto mask = static_cast<__mmask16>((1u << count) - 1);
  if (to.scales) sums = _mm512_mul_ps(sums, _mm512_maskz_loadu_ps(mask, to.scales + o));
  if (to.row_scales) sums = _mm512_mul_ps(sums, _mm512_set1_ps(to.row_scales[row]));
  if (to.bias.data && to.bias.dtype == DType::f32)
    sums = _mm512_add_ps(sums, _mm512_maskz_loadu_ps(mask, to.bias.as<float>() + o));
  else if (to.bias.data)
    sums = _mm512_add_ps(sums,
                         _mm512_castsi512_ps(_mm512_slli_epi32(
                             _mm512_cvtepu16_epi32(_mm256_maskz_loadu_epi16(mask, to.bias.as<uint16_t>() + o)), 16)));
  const int64_t at = row * to.y.cols() + o;
  if (to.y.dtype == DType::f32)
    _mm512_mask_storeu_ps(to.y.as<float>() + at, mask, sums);
  else
    _mm256_mask_storeu_epi16(to.y.as<uint16_t>() + at, mask, (__m256i)_mm512_cvtneps_pbh(sums));
}

// `count` rows of x from r0 on as [in / 8][count][8], in the order of the weight.
FEWBIT_QUAD_TARGET void pack_rows(ConstTensorView x, ColumnOrder order, int64_t r0, int64_t count, uint16_t* to) {
  const int64_t in = x.cols();
  for (int64_t tile = 0; tile < in / kTileCols; ++tile, to += count * kTileCols)
    for (int64_t r = 0; r < count; ++r) {
      alignas(64) uint16_t values[kTileCols];
      _mm512_store_si512(values, x_tile_row(x.as<bf16>() + (r0 + r) * in, tile, order));
      written();
      for (int64_t j = 0; j < 4; ++j) std::copy_n(values + j * 8, 8, to + (j * count + r) * 8);
    }
}

// A panel as it lies, with the scales of its groups where there are several.
struct Panel {
  const uint16_t* levels;
  const float* scales;
  int64_t in, segment;
};

// Cache lines of a dense weight that the next panel is made of, asked for beside the products of this one: else few
// rows wait for the memory first and multiply then.
struct NextLines {
  const uint8_t *at = nullptr, *end = nullptr;
  int64_t each = 0;  // lines for every eight columns of a block of rows

  FEWBIT_QUAD_INLINE void ask() {
    for (int64_t i = 0; i < each && at < end; ++i, at += 64)
      _mm_prefetch(reinterpret_cast<const char*>(at), _MM_HINT_T1);
  }
};

// The sums of a row with the quads of a panel, in the order of the outputs.
FEWBIT_QUAD_INLINE __m512 by_outputs(const __m512* s) {
  const __m512i by_output = _mm512_set_epi32(15, 11, 7, 3, 14, 10, 6, 2, 13, 9, 5, 1, 12, 8, 4, 0);
  return _mm512_permutexvar_ps(by_output, sums_of(s[0], s[1], s[2], s[3]));
}

// kRows rows of x with a panel: the sums of each row, in the order of the outputs.
template <int kRows, bool kGroups>
FEWBIT_QUAD_TARGET void multiply(const Panel& w, const uint16_t* x, NextLines& next, __m512* to) {
  __m512 total[std::max(1, kGroups * kRows)][kQuads], sum[kRows][kQuads];
  if constexpr (kGroups)
    for (auto& row : total)
      for (__m512& t : row) t = _mm512_setzero_ps();
  const uint16_t* levels = w.levels;
  for (int64_t c = 0, g = 0; c < w.in; ++g) {
    for (auto& row : sum)
      for (__m512& s : row) s = _mm512_setzero_ps();
    for (const int64_t end = std::min(w.in, c + w.segment); c < end; c += 8, levels += kPanelOuts * 8, x += kRows * 8) {
      next.ask();
      __m512bh level[kQuads];
      for (int64_t q = 0; q < kQuads; ++q) level[q] = (__m512bh)_mm512_load_si512(levels + q * 32);
      for (int64_t r = 0; r < kRows; ++r) {
        const __m128i some = _mm_loadu_si128(reinterpret_cast<const __m128i*>(x + r * 8));
        const auto value = (__m512bh)_mm512_broadcast_i32x4(some);
        for (int64_t q = 0; q < kQuads; ++q) sum[r][q] = _mm512_dpbf16_ps(sum[r][q], level[q], value);
      }
    }
    if constexpr (kGroups)
      for (int64_t q = 0; q < kQuads; ++q) {
        const __m512 scale = _mm512_loadu_ps(w.scales + (g * kQuads + q) * 16);
        for (int64_t r = 0; r < kRows; ++r) total[r][q] = _mm512_fmadd_ps(sum[r][q], scale, total[r][q]);
      }
  }
  for (int64_t r = 0; r < kRows; ++r) to[r] = by_outputs(kGroups ? total[r] : sum[r]);
}

// Makes a panel of a dense weight and multiplies it with kFirstRows rows of x on the way: shuffles and stores go beside
// their products, where a panel that is made alone takes a third of the time of sixteen rows.
FEWBIT_QUAD_TARGET void make_and_multiply(const TileWeight& w, int64_t o, const uint16_t* x, NextLines& next,
                                          uint16_t* levels, __m512* to) {
  constexpr int kPairs = 2;  // of quads, for each of which x is loaded once
  const int64_t bytes = 2 * w.in;
  const auto* row = reinterpret_cast<const uint8_t*>(w.dense + o * w.in);
  __m512 sum[kFirstRows][kQuads];
  for (auto& of_row : sum)
    for (__m512& s : of_row) s = _mm512_setzero_ps();
  for (int64_t c = 0; c < w.in; c += kTileCols, row += 2 * kTileCols, x += kFirstRows * kTileCols) {
#pragma GCC unroll 2
    for (int p = 0; p < kPairs; ++p) {
      __m512i level[2][4];
      for (int i = 0; i < 2; ++i) {
        const uint8_t* four = row + 4 * (2 * p + i) * bytes;
        const __m512i r[4] = {_mm512_loadu_si512(four), _mm512_loadu_si512(four + bytes),
                              _mm512_loadu_si512(four + 2 * bytes), _mm512_loadu_si512(four + 3 * bytes)};
        by_quarters(r, level[i]);
      }
#pragma GCC unroll 4
      for (int64_t j = 0; j < 4; ++j) {
        if (p == 0) next.ask();
        for (int i = 0; i < 2; ++i) _mm512_store_si512(levels + ((c / 8 + j) * kQuads + 2 * p + i) * 32, level[i][j]);
        for (int64_t r = 0; r < kFirstRows; ++r) {
          const __m128i some = _mm_loadu_si128(reinterpret_cast<const __m128i*>(x + (j * kFirstRows + r) * 8));
          const auto value = (__m512bh)_mm512_broadcast_i32x4(some);
          for (int i = 0; i < 2; ++i)
            sum[r][2 * p + i] = _mm512_dpbf16_ps(sum[r][2 * p + i], (__m512bh)level[i][j], value);
        }
      }
    }
  }
  for (int64_t r = 0; r < kFirstRows; ++r) to[r] = by_outputs(sum[r]);
}

using Multiply = void (*)(const Panel&, const uint16_t*, NextLines&, __m512*);
template <bool kGroups>
constexpr Multiply kMultiply[kXRows] = {multiply<1, kGroups>, multiply<2, kGroups>, multiply<3, kGroups>,
                                        multiply<4, kGroups>, multiply<5, kGroups>, multiply<6, kGroups>};

void few_rows(const TileWeight& w, const QuadLoops& loops, const uint16_t* x, int64_t rows, const Output& to) {
  const int64_t pieces = (w.out + kQuadOuts - 1) / kQuadOuts;
  const int64_t grain = std::max<int64_t>(1, kPieceBytes / (kQuadOuts * w.row_bytes));
  parallel_for(pieces, grain, [&](int64_t begin, int64_t end) FEWBIT_QUAD_TARGET {
    alignas(64) float sums[kQuadInputs * kQuadOuts + 8];
    for (int64_t p = begin; p < end; ++p) {
      const int64_t o = p * kQuadOuts, count = std::min(kQuadOuts, w.out - o);
      loops.few({.data = x, .rows = rows}, o, sums);
      written();
      for (int64_t r = 0; r < rows; ++r) store(to, _mm512_loadu_ps(sums + r * kQuadOuts), r, o, count);
    }
  });
}

// Those of the panel that begins at output o, beside `rows` rows with the panel before it.
NextLines lines_behind(const TileWeight& w, int64_t o, int64_t rows) {
  if (!w.dense || o >= w.out) return {};
  const int64_t lines = std::min(kPanelOuts, w.out - o) * w.row_bytes / 64;
  const int64_t asks = (rows + kXRows - 1) / kXRows * (w.in / 8);
  const auto* at = reinterpret_cast<const uint8_t*>(w.dense + o * w.in);
  return {.at = at, .end = at + lines * 64, .each = (lines + asks - 1) / asks};
}

void many_rows(const TileWeight& w, const QuadLoops& loops, const uint16_t* x, int64_t rows, const Output& to) {
  const bool groups = w.scales && w.group < w.in;
  const int64_t per_unit = kPanels * kPanelOuts, units = (w.out + per_unit - 1) / per_unit;
  const int64_t strip = strip_rows(rows), strips = (rows + strip - 1) / strip;
  const int64_t level_floats = kPanelOuts * w.in / 2, segments = groups ? (w.in + w.group - 1) / w.group : 0;
  parallel_for(strips * units, 1, [&](int64_t unit, int64_t) FEWBIT_QUAD_TARGET {
    uint16_t* levels = aligned(scratch(Scratch::w, level_floats + segments * kQuads * 16 + 16));
    float* scales = reinterpret_cast<float*>(levels) + level_floats;
    const Panel panel{.levels = levels, .scales = scales, .in = w.in, .segment = groups ? w.group : w.in};
    const int64_t first = unit / units * strip, end = std::min(rows, first + strip);
    for (int64_t p = 0; p < kPanels; ++p) {
      const int64_t o = unit % units * per_unit + p * kPanelOuts, count = std::min(kPanelOuts, w.out - o);
      if (count <= 0) break;
      NextLines next = lines_behind(w, o + kPanelOuts, end - first);
      const bool made = count == kPanelOuts && makes_panel(w, 0, end - first);
      if (!made) loops.panel(o, levels, scales);
      written();
      for (int64_t r = first, n = 0; r < end; r += n) {
        n = tile_rows(w, r - first, end - r);
        __m512 sums[kXRows];
        if (made && r == first)
          make_and_multiply(w, o, x + r * w.in, next, levels, sums);
        else
          (groups ? kMultiply<true> : kMultiply<false>)[n - 1](panel, x + r * w.in, next, sums);
        written();
        for (int64_t i = 0; i < n; ++i) store(to, sums[i], r + i, o, count);
      }
    }
  });
}

}  // namespace

void avx512_product(ConstTensorView x, const TileWeight& w, const float* row_scales, ConstTensorView bias,
                    TensorView y) {
  const int64_t rows = x.rows(), strip = rows <= kQuadInputs ? rows : strip_rows(rows);
  std::vector<int64_t> tiles;  // their first rows
  for (int64_t r = 0; r < rows;
       r += rows <= kQuadInputs ? rows : tile_rows(w, r % strip, std::min(strip - r % strip, rows - r)))
    tiles.push_back(r);
  tiles.push_back(rows);
  uint16_t* packed = aligned(scratch(Scratch::x, rows * w.in / 2 + 16));
  parallel_for(static_cast<int64_t>(tiles.size()) - 1, 4, [&](int64_t begin, int64_t end) {
    for (auto t = static_cast<size_t>(begin); t < static_cast<size_t>(end); ++t)
      pack_rows(x, w.order, tiles[t], tiles[t + 1] - tiles[t], packed + tiles[t] * w.in);
  });
  written();
  const QuadLoops dense =
      w.dense ? quad_loops([&w](int64_t o) FEWBIT_QUAD_TARGET { return DenseQuad(w, o); }) : QuadLoops{};
  const bool groups = w.scales && w.group < w.in;
  const Output to{.scales = groups ? nullptr : w.scales, .row_scales = row_scales, .bias = bias, .y = y};
  (rows <= kQuadInputs ? few_rows : many_rows)(w, w.dense ? dense : w.quads, packed, rows, to);
}

#endif

}  // namespace fewbit::cpu
