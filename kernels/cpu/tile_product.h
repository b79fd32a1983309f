#pragma once
// y = x W^T in bf16 through what the processor has for it, for any number of rows: of a decode step and of a prompt.
// That is the matrix unit (AMX), else the instruction of AVX-512 that multiplies pairs of bf16.
//
// An output is summed over the columns in an order that does not depend on what else is computed beside it:
//   AMX       32 columns at a time, in the order of the columns
//   AVX-512   four partial sums, in each of which every fourth pair of columns is added in the order of the columns
// So the bits of a row of y depend on that row of x, on the weight and on which of the two it was: not on the other
// rows, not on how many there are, not on the threads.
#include <cstdint>
#include <functional>

#include "src/core/half.h"
#include "src/core/tensor.h"

namespace fewbit::cpu {

// What multiplies bf16. amx: AMX-BF16 with AVX512-BF16, BW, VL, DQ, and a system that lets this process use it;
// FEWBIT_AMX=0 in the environment says no. avx512: AVX512-BF16, BW, VL, DQ; FEWBIT_BF16=0 says no to both.
enum class TileUnit : uint8_t { none, avx512, amx };
TileUnit tile_unit();
inline bool has_tiles() { return tile_unit() != TileUnit::none; }

// Outputs in a block, columns in a tile.
inline constexpr int64_t kBlockOuts = 32, kTileCols = 32;

// The order in which columns of x and W are multiplied. by_four: within every 32 columns those that share a remainder
// modulo 4 stand together; in that order codes of 4 bits come out of their words of 16.
enum class ColumnOrder : uint8_t { natural, by_four };

// What AVX-512 multiplies in place of tiles: quads of four outputs and eight columns, a register of them.
inline constexpr int64_t kQuadOuts = 8;    // outputs that few() sums up: two quads
inline constexpr int64_t kQuadInputs = 8;  // rows of x that it takes, at most
inline constexpr int64_t kPanelOuts = 16;  // outputs of a panel
struct QuadInput {
  const uint16_t* data = nullptr;  // x in the order of the weight: [in / 8][rows][8]
  int64_t rows = 0;
};
struct QuadLoops {
  // The sums of all rows of x with outputs [o, o + kQuadOuts), [rows][kQuadOuts], times the scales of their groups
  // where there are several.
  std::function<void(const QuadInput&, int64_t o, float* sums)> few{};
  // The levels of outputs [o, o + kPanelOuts) as [in / 8][kPanelOuts / 4][4][8], and where there are several groups
  // their scales [groups][kPanelOuts][4], each four times.
  std::function<void(int64_t o, uint16_t* levels, float* scales)> panel{};
};

struct TileWeight {
  int64_t out = 0, in = 0;
  ColumnOrder order = ColumnOrder::natural;
  // Columns that share a scale, a multiple of 32, and the scales [out, ceil(in / group)]; null: no scales.
  int64_t group = 0;
  const float* scales = nullptr;
  // bf16 [out, in] as it lies; null: fill() or the loops make the values.
  const bf16* dense = nullptr;
  // Of AMX: writes columns [c0, c1) of outputs [o + i0, o + i1) of the block [o, o + 32), in the order above, to their
  // places in tiles [(c1 - c0) / 32][32 outputs][32] of bf16; past the last output anything finite. c0 and c1 are
  // multiples of 32.
  std::function<void(int64_t o, int64_t i0, int64_t i1, int64_t c0, int64_t c1, uint16_t* tiles)> fill{};
  QuadLoops quads{};      // of AVX-512
  int64_t row_bytes = 0;  // that a row of the weight takes in memory
};

// Whether tile_product() takes a weight of this shape: has_tiles(), in % 32 == 0 and at least 16 outputs.
bool tiles_fit(int64_t out, int64_t in);

// y = (x W^T) * row_scales + bias: sums in f32 over each group, times the group's scale, added in f32 over the groups;
// values of a magnitude below 2^-126 count as zeros.
//   x [rows, in] bf16 · row_scales [rows] f32 or null · bias [out] bf16 | f32 or null · y [rows, out] f32 | bf16
void tile_product(ConstTensorView x, const TileWeight&, const float* row_scales, ConstTensorView bias, TensorView y);

}  // namespace fewbit::cpu
