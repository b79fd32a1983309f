#pragma once
// Weights in codes for products in bf16 on a CPU (kernels/cpu/tile_product.h): their codes become bf16 levels, which
// are exact, as they are needed.
#include <optional>

#include "kernels/cpu/tile_product.h"
#include "kernels/products/bytes/int8_gemm.h"
#include "kernels/products/row_gemm.h"

namespace fewbit::cpu {

// Nothing where this machine has no such products, or the shape or the groups do not fit: groups of whole 32 columns,
// or one. The view must outlive the result.
std::optional<TileWeight> tile_weight(const RowPackedView&);
// Of E4M3 codes [out, in]; a NaN code is a NaN.
std::optional<TileWeight> tile_weight(const ByteWeightView&);
// Their loops in AVX-512 (quad_weights_cpu.cpp), where the shape fits.
QuadLoops quad_loops(const RowPackedView&);
QuadLoops quad_loops(const ByteWeightView&);

}  // namespace fewbit::cpu
