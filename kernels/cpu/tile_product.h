#pragma once
// y = x W^T in bf16 through the processor's matrix unit (AMX), for any number of rows: of a decode step and of a
// prompt.
//
// An output is summed over 32 columns at a time in the order of the columns, whatever else is computed beside it. So
// the bits of a row of y depend on that row of x and on the weight alone: not on the other rows, not on how many there
// are, not on the threads.
#include <cstdint>
#include <functional>

#include "src/core/half.h"
#include "src/core/tensor.h"

namespace fewbit::cpu {

// Whether this processor has AMX-BF16 (and AVX512-BF16, BW, VL, DQ, which these loops use too), and the system lets
// this process use it. FEWBIT_AMX=0 in the environment says no.
bool has_tiles();

// Outputs in a block, columns in a tile.
inline constexpr int64_t kBlockOuts = 32, kTileCols = 32;

// The order in which columns of x and W are multiplied. Within every 128 (32) columns those that share a remainder
// modulo 4 (2) stand together: in that order codes of 4 bits come out of their words.
enum class ColumnOrder : uint8_t { natural, by_two, by_four };

struct TileWeight {
  int64_t out = 0, in = 0;
  ColumnOrder order = ColumnOrder::natural;
  // Columns that share a scale, a multiple of 32, and the scales [out, ceil(in / group)]; null: no scales.
  int64_t group = 0;
  const float* scales = nullptr;
  // bf16 [out, in] as it lies; null: fill() makes the values.
  const bf16* dense = nullptr;
  // Writes columns [c0, c1) of outputs [o, o + 32), in the order above, as tiles [(c1 - c0) / 32][32 outputs][32] of
  // bf16; past the last output anything finite. c0 and c1 are multiples of 32; by_four: of 128.
  std::function<void(int64_t o, int64_t c0, int64_t c1, uint16_t* tiles)> fill{};
  int64_t row_bytes = 0;  // that a row of the weight takes in memory
};

// Whether tile_product() takes a weight of this shape: has_tiles(), in % 32 == 0 and at least 16 outputs.
bool tiles_fit(int64_t out, int64_t in);

// y = (x W^T) * row_scales + bias: sums in f32 over each group, times the group's scale, added in f32 over the groups;
// values of a magnitude below 2^-126 count as zeros.
//   x [rows, in] bf16 · row_scales [rows] f32 or null · bias [out] bf16 | f32 or null · y [rows, out] f32 | bf16
void tile_product(ConstTensorView x, const TileWeight&, const float* row_scales, ConstTensorView bias, TensorView y);

}  // namespace fewbit::cpu
