#pragma once
// FP8 in the order of blocks of GGUF.
#include "src/run/linear.h"

namespace fewbit {

// A linear of FP8 codes in strips where AVX512-BF16 multiplies them, which reads twice as fast there as loops over rows
// of codes do; any other bytes as they are.
Linear fp8_linear(Exec&, ByteLinear, const LoadOptions&);
// y = x W^T + bias of those in strips that round one x to FP8, all as the first one's `input` says: the codes of x are
// multiplied as bf16, which holds them, the sums by the scale of their row.
void fp8_strip_gemms(Exec&, ConstTensorView x, std::span<const GgufLinear* const>, std::span<const TensorView> ys);

}  // namespace fewbit
