#pragma once
// The loops of quad_product.h that depend on how a weight is stored: a weight's file gives the levels of a quad, four
// outputs, and has loops for few rows and panels for many out of them.
//
// A type L of levels is of one quad. It has
//   static constexpr int kTiles    tiles of 32 columns that come out of one load
//   void load(int64_t c, int64_t g, int quads)   columns [c, c + 32 kTiles), of segment g, in a loop over `quads` quads
//   void tile(int t, __m512i* to)  those of tile t: 4 registers of 8 columns, each [4 outputs][8] of bf16
//   int64_t in, segment            columns, and those that share a scale: `in` where there is one scale an output or
//   none
//   __m512 scale(int64_t g)        the scales of segment g, where there are several: each output's four times
#include <algorithm>
#include <cstdint>

#include "kernels/cpu/tile_product.h"
#include "kernels/cpu/tile_registers.h"

#ifdef FEWBIT_TILES
#define FEWBIT_QUAD_TARGET __attribute__((target("avx512f,avx512bw,avx512vl,avx512dq,avx512bf16,avx2,fma")))
// Levels must be inlined: their registers are those of the loop.
#define FEWBIT_QUAD_INLINE FEWBIT_QUAD_TARGET __attribute__((always_inline)) inline

namespace fewbit::cpu {

// Four rows of 64 bytes to four registers of a quarter of each: [4 rows][16 bytes].
FEWBIT_QUAD_INLINE void by_quarters(const __m512i* r, __m512i* to) {
  const __m512i a = _mm512_shuffle_i32x4(r[0], r[1], 0x44), b = _mm512_shuffle_i32x4(r[2], r[3], 0x44);
  const __m512i c = _mm512_shuffle_i32x4(r[0], r[1], 0xee), d = _mm512_shuffle_i32x4(r[2], r[3], 0xee);
  to[0] = _mm512_shuffle_i32x4(a, b, 0x88);
  to[1] = _mm512_shuffle_i32x4(a, b, 0xdd);
  to[2] = _mm512_shuffle_i32x4(c, d, 0x88);
  to[3] = _mm512_shuffle_i32x4(c, d, 0xdd);
}

// The sums of outputs whose four partial sums stand side by side: lane 4 o + q of the result is output o of quad q.
FEWBIT_QUAD_INLINE __m512 sums_of(__m512 q0, __m512 q1, __m512 q2, __m512 q3) {
  const __m512 a = _mm512_add_ps(_mm512_shuffle_ps(q0, q1, 0x88), _mm512_shuffle_ps(q0, q1, 0xdd));
  const __m512 b = _mm512_add_ps(_mm512_shuffle_ps(q2, q3, 0x88), _mm512_shuffle_ps(q2, q3, 0xdd));
  return _mm512_add_ps(_mm512_shuffle_ps(a, b, 0x88), _mm512_shuffle_ps(a, b, 0xdd));
}

// Four rows of `bytes` bytes of a weight, which lie one behind the other; past the last output that one again.
struct QuadRows {
  static constexpr int64_t kAhead = 4096;  // bytes that are prefetched
  const uint8_t* row[4];
  int64_t bytes;
  QuadRows(const void* first, int64_t o, int64_t out, int64_t row_bytes) : bytes(row_bytes) {
    for (int64_t i = 0; i < 4; ++i) row[i] = static_cast<const uint8_t*>(first) + std::min(o + i, out - 1) * bytes;
  }
  // What a loop over `quads` quads reads next of row i: further on, or the row that it begins after this one.
  void prefetch(int i, int64_t at, int quads) const {
    const int64_t ahead = at + kAhead < bytes ? at + kAhead : at + kAhead + (4 * quads - 1) * bytes;
    _mm_prefetch(reinterpret_cast<const char*>(row[i]) + ahead, _MM_HINT_T1);
  }
};

// kRows rows of x from `first` on with kQuads quads from output o on; their sums go to [row][kQuadOuts]. The quads are
// made here: only so do all of their registers stay registers.
template <int kRows, int kQuads, class Make>
FEWBIT_QUAD_TARGET void few_sums(const Make& make, int64_t o, const QuadInput& x, int64_t first, float* sums) {
  using L = decltype(make(o));
  L quads[2] = {make(o), make(o + 4)};
  const int64_t in = quads[0].in, segment = quads[0].segment;
  __m512 total[kQuads][kRows];
  for (auto& of_quad : total)
    for (__m512& t : of_quad) t = _mm512_setzero_ps();
  for (int64_t c = 0, g = 0; c < in; ++g) {
    __m512 sum[kQuads][kRows];
    for (auto& of_quad : sum)
      for (__m512& s : of_quad) s = _mm512_setzero_ps();
    for (const int64_t end = std::min(in, c + segment); c < end; c += L::kTiles * kTileCols) {
      for (int q = 0; q < kQuads; ++q) quads[q].load(c, g, kQuads);
#pragma GCC unroll 4
      for (int t = 0; t < L::kTiles; ++t) {
        __m512i level[kQuads][4];
        for (int q = 0; q < kQuads; ++q) quads[q].tile(t, level[q]);
        const uint16_t* at = x.data + ((c / 8 + t * 4) * x.rows + first) * 8;
#pragma GCC unroll 4
        for (int64_t j = 0; j < 4; ++j, at += x.rows * 8)
#pragma GCC unroll 8
          for (int r = 0; r < kRows; ++r) {
            const __m512i value = _mm512_broadcast_i32x4(_mm_loadu_si128(reinterpret_cast<const __m128i*>(at + r * 8)));
            for (int q = 0; q < kQuads; ++q)
              sum[q][r] = _mm512_dpbf16_ps(sum[q][r], (__m512bh)level[q][j], (__m512bh)value);
          }
      }
    }
    for (int q = 0; q < kQuads; ++q) {
      const __m512 scale = segment < in ? quads[q].scale(g) : _mm512_setzero_ps();
      for (int r = 0; r < kRows; ++r)
        total[q][r] = segment < in ? _mm512_fmadd_ps(sum[q][r], scale, total[q][r]) : sum[q][r];
    }
  }
  for (int q = 0; q < kQuads; ++q)
    for (int r = 0; r < kRows; ++r) {
      const __m512 t = total[q][r], four = sums_of(t, t, t, t);
      alignas(64) float values[16];
      _mm512_store_ps(values, four);
      for (int i = 0; i < 4; ++i) sums[(first + r) * kQuadOuts + q * 4 + i] = values[4 * i];
    }
}

// The sums of all rows of x, 8 at most, with the kQuadOuts outputs whose quads make(o) gives.
template <class Make>
FEWBIT_QUAD_TARGET void few_rows_of(const Make& make, const QuadInput& x, int64_t o, float* sums) {
  static_assert(kQuadOuts == 8);
  int64_t r = 0;
  if (x.rows == 8) {
    few_sums<8, 1>(make, o, x, 0, sums);
    return few_sums<8, 1>(make, o + 4, x, 0, sums + 4);
  }
  for (; r + 4 <= x.rows; r += 4) few_sums<4, 2>(make, o, x, r, sums);
  for (; r + 2 <= x.rows; r += 2) few_sums<2, 2>(make, o, x, r, sums);
  for (; r < x.rows; ++r) few_sums<1, 2>(make, o, x, r, sums);
}

// A panel: the levels of outputs [o, o + kPanelOuts) as [in / 8][kPanelOuts / 4 quads][4][8], and the scales of its
// segments, where there are several, as [segments][quads][16].
template <class Make>
FEWBIT_QUAD_TARGET void panel_of(const Make& make, int64_t o, uint16_t* levels, float* scales) {
  constexpr int64_t kQuads = kPanelOuts / 4;
  for (int64_t q = 0; q < kQuads; ++q) {
    auto quad = make(o + 4 * q);
    constexpr int kTiles = decltype(quad)::kTiles;
    for (int64_t c = 0; c < quad.in; c += kTiles * kTileCols) {
      quad.load(c, quad.segment < quad.in ? c / quad.segment : 0, kQuads);
#pragma GCC unroll 4
      for (int t = 0; t < kTiles; ++t) {
        __m512i level[4];
        quad.tile(t, level);
        for (int64_t j = 0; j < 4; ++j) _mm512_store_si512(levels + ((c / 8 + t * 4 + j) * kQuads + q) * 32, level[j]);
      }
    }
    if (quad.segment < quad.in)
      for (int64_t g = 0; g * quad.segment < quad.in; ++g)
        _mm512_storeu_ps(scales + (g * kQuads + q) * 16, quad.scale(g));
  }
}

template <class Make>
QuadLoops quad_loops(const Make& make) {
  return {.few = [make](const QuadInput& x, int64_t o, float* sums) { few_rows_of(make, x, o, sums); },
          .panel = [make](int64_t o, uint16_t* levels, float* scales) { panel_of(make, o, levels, scales); }};
}

}  // namespace fewbit::cpu

#endif
