#pragma once
// The loops of block_gemm() in AVX512-BF16 (block_dot_cpu.cpp), and in AVX2 with FMA (wide_dot_cpu.cpp).
#include "kernels/products/blocks/block_layout.h"

namespace fewbit::cpu {

bool has_block_dots();  // this machine has them: AVX512-BF16, BW, VL, DQ and VBMI

inline constexpr int64_t kFewRows = 8;  // rows of x that pair_dots() takes, at most

// x as the loops read it: tiles of as many rows as a loop takes at once, [in / 2][rows of the tile] pairs of columns.
// One row is as it lies.
struct PackedRows {
  const uint32_t* pairs = nullptr;  // [rows][in / 2] in all
  int64_t rows = 0, in = 0;
  const float* sums = nullptr;  // [rows][in / group] of a weight with minima, else null
};
void pack_rows(ConstTensorView x, int64_t first, int64_t rows, uint32_t* pairs);  // x bf16; what loops: by `rows`

// A strip of a weight, with its scales as strip_scales() makes them: f32 [2][in / group][16].
struct StripRef {
  const BlockForm& form;
  const uint8_t* bytes = nullptr;
  const float *scales = nullptr, *minima = nullptr;
};
void dot_scales(const BlockForm&, int64_t in, const uint8_t* strip, float* scales, float* minima);  // strip_scales()
// Its levels, bf16 [2][in / 2][16 outputs][2] at a multiple of 64 bytes.
void strip_levels(const StripRef&, int64_t in, uint16_t* levels);

// The sums of all rows with the outputs of a strip, f32 [rows][32]. code_dots() makes levels from codes in registers,
// for up to kFewRows rows; level_dots() takes them from memory, for any number.
void code_dots(const StripRef&, const PackedRows&, float* sums);
void level_dots(const StripRef&, const uint16_t* levels, const PackedRows&, float* sums);

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
  const float* sums = nullptr;  // [rows][in / wide_group()] of x itself
};
// Columns whose products are summed before the scale multiplies them: a group, or 128 that share their scales.
int64_t wide_group(const BlockForm&);
float wide_factor(const BlockForm&, int64_t column);  // a power of two
float wide_offset(const BlockForm&);                  // what a code's number lacks of its level
// The sums of all rows with the outputs of a strip, f32 [rows][32]: over wide_group() columns products of codes'
// numbers with x, from wide_offset() times the sum of x on.
void wide_dots(const StripRef&, const WideRows&, float* sums);

}  // namespace fewbit::cpu
