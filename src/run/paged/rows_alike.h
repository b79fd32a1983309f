#pragma once
// Whether a row has the same bits beside however many others, which is what a pass over many sequences promises.
#include <span>

#include "src/run/block.h"
#include "src/run/head.h"

namespace fewbit {

// On the CPU: whether apply() to an x of this type gives a row of y the same bits in any number of rows. The matrix
// unit's products do (kernels/cpu/tile_product.h), and exact sums of whole numbers; others up to 8 rows.
bool rows_alike(const Linear&, DType x);
// The same of a whole model. False where it has ops with products of their own, whatever those do: mixtures, recurrent
// layers, latents.
bool rows_alike(const ModelSpec&, std::span<const BlockWeights>, const Ends&, DType compute);

}  // namespace fewbit
