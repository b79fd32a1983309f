#pragma once
// What the codes of a linear stand for, made on the device: a byte a weight goes there, not its values.
#include "kernels/exec/exec.h"
#include "src/core/quantized_linear.h"

namespace fewbit {

// The codes that dequantize() (kernels/products/dequantize.h) takes for a grid, on the device; empty for integers.
Tensor levels_of(Exec&, Grid);
// Two codes of up to 4 bits a byte, the first in its low half: [out, ceil(in / 2)] u8 in host memory.
Tensor nibbles_of(const QuantizedLinear&);
// [out, in] in `dtype` (f32 | bf16).
Tensor values_of(Exec&, const QuantizedLinear&, DType dtype);

}  // namespace fewbit
