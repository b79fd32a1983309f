#pragma once
// Whether a row has the same bits beside however many others, which is what a pass over many sequences promises.
#include <span>

#include "src/run/block.h"
#include "src/run/head.h"

namespace fewbit {

// Rows up to which every product of the CPU takes them one by one (kFewRows of kernels/products/gemm_cpu.cpp is the
// least).
inline constexpr int64_t kRowsAlike = 8;
// Rows of a slice where all products are alike for any number: weights are read once for so many. Slots of more rows
// leave the second cache, and a step of that many sequences is long already.
inline constexpr int64_t kRowsInTiles = 64;

// On the CPU: whether apply() to an x of this type gives a row of y the same bits in any number of rows. The matrix
// unit's products do (kernels/cpu/tile_product.h), and exact sums of whole numbers; others up to 8 rows.
bool rows_alike(const Linear&, DType x);
// The same of a whole model. False where it has ops with products of their own, whatever those do: mixtures, recurrent
// layers, latents.
bool rows_alike(const ModelSpec&, std::span<const BlockWeights>, const Ends&, DType compute);

// kRowsInTiles where they are alike, else kRowsAlike.
inline int64_t rows_of_slice(const ModelSpec& spec, std::span<const BlockWeights> blocks, const Ends& ends, DType x) {
  return rows_alike(spec, blocks, ends, x) ? kRowsInTiles : kRowsAlike;
}

}  // namespace fewbit
