#pragma once
// two_of_four(): whether a linear in the neutral form is in 2:4 sparsity, whatever chose its mask.
#include "src/core/quantized_linear.h"

namespace fewbit {

// Of every four neighbouring inputs of a row, counted from the first, two codes at most are not that of zero. Of a
// symmetric integer grid; false of every other, and where the inputs are no multiple of four.
bool two_of_four(const QuantizedLinear& q);

}  // namespace fewbit
