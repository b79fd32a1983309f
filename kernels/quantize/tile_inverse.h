#pragma once
// invert_tiles(): the squares on the diagonal of the factor R that the column loops on the CPU walk with.
#include <vector>

#include "kernels/quantize/column_tiles.h"
#include "src/core/mat.h"

namespace fewbit::cpu {

// U_BB = R_BB^-1 of every tile B, [most, most] each with `most` at least the columns of any tile, by back substitution
// in f64. What lies beside a smaller tile is 0.
//   r  [in, in] f32, upper triangular (kernels/quantize/factor.h)
std::vector<float> invert_tiles(Mat<const float> r, const std::vector<ColumnTile>& tiles, int64_t most);

}  // namespace fewbit::cpu
