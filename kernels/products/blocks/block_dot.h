#pragma once
// The loops of block_gemm() in AVX512-BF16 (block_dot_cpu.cpp), and in AVX2 with FMA (wide_chunk_cpu.cpp).
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

bool has_wide_chunks();  // this machine has AVX2 and FMA
// 32 columns of a half with rows of x, whose values there lie at x, x + in, ... in f32: adds to totals, [rows][32],
// what `scales` and `minima` of the half's groups from these columns on make of them. Sums of groups of x as in
// PackedRows.
void add_wide_chunk(const BlockForm&, const uint8_t* codes, const float* scales, const float* minima, const float* x,
                    int64_t in, int64_t rows, const float* sums, float* totals);

}  // namespace fewbit::cpu
