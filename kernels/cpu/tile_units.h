#pragma once
// The two ways of tile_product(): it has checked its arguments, and calls the one that the machine has.
#include "kernels/cpu/tile_product.h"

namespace fewbit::cpu {

void amx_product(ConstTensorView x, const TileWeight&, const float* row_scales, ConstTensorView bias, TensorView y);
void avx512_product(ConstTensorView x, const TileWeight&, const float* row_scales, ConstTensorView bias, TensorView y);

}  // namespace fewbit::cpu
