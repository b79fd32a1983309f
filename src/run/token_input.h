#pragma once
// What a layer takes from the token alone, as one table: a row for every token of the vocabulary.
#include "kernels/exec/exec.h"
#include "src/model/checkpoint.h"

namespace fewbit {

// The op's formula for every token, [vocab, features] in `dtype` on the device; computed in f32, rounded once.
Tensor token_table(Exec&, const Checkpoint&, const TokenInput&, int64_t layer, DType dtype);

}  // namespace fewbit
