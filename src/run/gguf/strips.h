#pragma once
// Weights of other files than GGUF's in the order of its blocks (kernels/products/blocks/block_layout.h).
#include <algorithm>

#include "kernels/cpu/tile_product.h"
#include "kernels/products/blocks/block_gemm.h"
#include "src/core/parallel.h"

namespace fewbit {

// The loops over strips where nothing multiplies codes faster; plain, with AMX too: it has tiles.
inline cpu::BlockLoops best_over_strips() {
  return cpu::tile_unit() == cpu::TileUnit::amx ? cpu::BlockLoops::plain : cpu::block_loops();
}

// Strips of a weight, whose outputs put(output, strip of it) stores.
template <class Put>
Tensor strips_of(Exec& ex, const BlockForm& form, int64_t out, int64_t in, const Put& put) {
  const int64_t count = (out + kStripOuts - 1) / kStripOuts;
  Tensor strips = ex.alloc_zeros(DType::u8, {count, form.strip_bytes(in)});
  parallel_for(count, 1, [&](int64_t s, int64_t) {
    for (int64_t o = s * kStripOuts; o < std::min(out, (s + 1) * kStripOuts); ++o)
      put(o, strips.as<uint8_t>() + s * strips.cols());
  });
  return strips;
}

}  // namespace fewbit
