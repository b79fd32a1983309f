#pragma once
#include "src/core/tensor.h"

namespace fewbit {

// A host tensor of f32 in another float type, rounded to nearest.
Tensor in_float_type(const Tensor& f32, DType);

}  // namespace fewbit
