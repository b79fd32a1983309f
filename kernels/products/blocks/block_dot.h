#pragma once
// The loops of block_gemm() in AVX512-BF16 (block_dot_cpu.cpp), and in AVX2 with FMA (wide_dot_cpu.cpp).
#include "kernels/products/blocks/block_layout.h"

namespace fewbit::cpu {

bool has_block_dots();  // this machine has them: AVX512-BF16, BW, VL, DQ and VBMI

// Rows of x in a tile, at most. Each has a sum and a total for both halves, and levels are made for every tile anew,
// which costs little beside four rows and next to nothing beside six; minima leave registers for four. Levels of 8 bits
// cost more, and where totals are met once in 128 columns they may lie in memory.
inline int64_t tile_rows(const BlockForm& f) { return f.minima ? 4 : f.bits == 8 && f.group == 128 ? 8 : 6; }
// The tiles of a pass, nearly all of one size, since one of few rows has too few sums under way.
inline int64_t row_tiles(const BlockForm& f, int64_t rows) { return (rows + tile_rows(f) - 1) / tile_rows(f); }

// x as the loop reads it: tile after tile, [in / 2][rows of the tile] pairs of columns. One row is as it lies.
struct PackedRows {
  const uint32_t* pairs = nullptr;  // [rows][in / 2] in all
  int64_t rows = 0, in = 0;
  const float* sums = nullptr;  // [rows][in / group] of a weight with minima, else null
};
// Tiles [begin, end) of rows [first, first + rows) of x, bf16; `pairs` is the first tile's.
void pack_rows(const BlockForm&, ConstTensorView x, int64_t first, int64_t rows, int64_t begin, int64_t end,
               uint32_t* pairs);

// A strip of a weight, with its scales as strip_scales() makes them, f32 [2][in / group][16], or where they lie as such
// in its heads: `step` floats from those of a group to those of the next one.
struct StripRef {
  const BlockForm& form;
  const uint8_t* bytes = nullptr;
  const float *scales = nullptr, *minima = nullptr;
  int64_t step = kLanes;
};
void dot_scales(const BlockForm&, int64_t in, const uint8_t* strip, float* scales, float* minima);  // strip_scales()
// The sums of all rows with the outputs of a strip, f32 [rows][32]; levels are made from codes in registers.
void code_dots(const StripRef&, const PackedRows&, float* sums);

bool has_wide_dots();    // this machine has AVX2 and FMA
bool has_wide_scales();  // and F16C
void wide_scales(const BlockForm&, int64_t in, const uint8_t* strip, float* scales, float* minima);  // strip_scales()
// The fastest of strip_scales(), wide_scales() and dot_scales() here, which make the same numbers.
using MakeScales = void (*)(const BlockForm&, int64_t, const uint8_t*, float*, float*);
inline MakeScales fast_scales() {
  return has_block_dots() ? dot_scales : has_wide_scales() ? wide_scales : strip_scales;
}

// x as the loop in AVX2 reads it.
struct WideRows {
  // [in / 32][all][32], from the first row on: each value times wide_factor() of its column
  const float* values = nullptr;
  int64_t rows = 0, all = 0, in = 0;
  const float* sums = nullptr;  // [rows][in / group] of x itself
};
float wide_factor(const BlockForm&, int64_t column);  // a power of two
float wide_offset(const BlockForm&);                  // what a code's number lacks of its level
// The sums of all rows with the outputs of a strip, f32 [rows][32]: over a group products of codes'
// numbers with x, from wide_offset() times the sum of x on.
void wide_dots(const StripRef&, const WideRows&, float* sums);

}  // namespace fewbit::cpu
