#pragma once
// The loops of block_int8_gemm() in AVX512-VNNI (int8_dot_cpu.cpp) and AVX2 (int8_wide_cpu.cpp).
#include <array>

#include "kernels/products/blocks/block_layout.h"
#include "src/core/half.h"

namespace fewbit::cpu {

bool has_int8_dots();       // this machine has AVX512-VNNI, BW, VL and DQ
bool has_wide_int8_dots();  // AVX2 and FMA

// Rows of x that the loop in AVX-512 takes at once, where so many are left: their codes lie side by side.
inline constexpr int64_t kInt8Tile = 4;
inline int64_t int8_tile(int64_t left) { return left >= kInt8Tile ? kInt8Tile : left >= 2 ? 2 : 1; }
// Columns that share a scale of the weight: over those of a wide scale, which may be many, 32 at a time are summed
// first.
inline int64_t int8_span(const BlockForm& f) { return f.scale == BlockScale::wide ? f.columns : f.group; }

// Rows of x as the loops read them: tile by tile, of int8_tile() rows in AVX-512, of one row else.
struct CodedRows {
  int64_t rows = 0, in = 0, group = 0, span = 0;
  // [tile][in / 32][rows of the tile][32] in the orders of the form's planes (plane_order()); `high` where there are
  // two planes, else null.
  const int8_t *low = nullptr, *high = nullptr;
  const float* scales = nullptr;  // [tile][in / 32][rows of the tile]
  // [tile][in / group][rows of the tile]: what the sums of a group of the weight begin with, the sum of x's codes times
  // what is taken off a code of the weight to make its level
  const int32_t* starts = nullptr;
  // [tile][in / span][rows of the tile]: the sum of x's codes times x's scale, f32, over the columns that share a
  // minimum, 32 at a time; of a weight with minima, else null
  const float* scaled = nullptr;

  // From row r on, where a tile begins.
  CodedRows from(int64_t r) const {
    CodedRows c = *this;
    c.rows -= r;
    c.low += r * in;
    if (c.high) c.high += r * in;
    c.scales += r * (in / kChunkCols);
    c.starts += r * (in / group);
    if (c.scaled) c.scaled += r * (in / span);
    return c;
  }
};

// Column (of 32) of byte `at` of 32 codes of x that meet a plane of `bits` bits: the bytes of a word of 32 bits are
// multiplied at once with those of a word of the plane, shifted to the right by `bits` more from one word to the next.
int plane_order(int bits, int at);
using PlaneOrder = std::array<uint8_t, kChunkCols>;

// 32 columns of x in int8: their scale, the sums of either half of the codes.
struct CodedPart {
  float scale = 0;
  std::array<int32_t, 2> sums{};
};
// Makes them in AVX-512 and puts the codes in the orders of two planes, of one where to_high is null.
CodedPart code_part(const bf16* x, const PlaneOrder& low, int8_t* to_low, const PlaneOrder& high, int8_t* to_high);

// A strip with its scales and minima, those of span g of a half at (half * spans + g) * step.
struct Int8Strip {
  const BlockForm& form;
  const uint8_t* bytes = nullptr;
  const float *scales = nullptr, *minima = nullptr;
  int64_t step = kLanes;
};
// The sums of all rows with the outputs of a strip, f32 [rows][32].
void int8_dots(const Int8Strip&, const CodedRows&, float* sums);
void wide_int8_dots(const Int8Strip&, const CodedRows&, float* sums);

// Calls f.operator()<minima, wide>() as the form's scales are: wide ones are of 4 and 8 bits in groups of 32 alone.
template <int kBits, int kGroup, class F>
void with_scales(const BlockForm& form, const F& f) {
  if constexpr (kGroup == 32 && (kBits == 4 || kBits == 8))
    if (form.scale == BlockScale::wide)
      return form.minima ? f.template operator()<true, true>() : f.template operator()<false, true>();
  form.minima ? f.template operator()<true, false>() : f.template operator()<false, false>();
}

}  // namespace fewbit::cpu
