#pragma once
#include "src/core/tensor.h"

namespace fewbit {

// The types that weights which are not packed are stored in.
constexpr bool is_float(DType t) { return t == DType::f32 || t == DType::f16 || t == DType::bf16; }

// A host tensor of f32 in another float type, rounded to nearest.
Tensor in_float_type(const Tensor& f32, DType);

}  // namespace fewbit
