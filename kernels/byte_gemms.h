#pragma once
#include <span>

#include "kernels/fp8_gemm.h"
#include "kernels/int8_gemm.h"
namespace fewbit {
// int8_gemm or fp8_gemm for several weights of one x, which is quantized once; all codes of the type that `q` makes
// (kUnrounded: f8_e4m3), y alike in dtype. On a GPU up to 16 rows in bf16 (kUnrounded: 64, where they find room) take one
// launch or a few (up to kByteGemmsAtOnce weights at a time) that read the weights as they lie (kernels/skinny.cuh) and may
// begin before the kernel before them has ended: no work in flight may write a weight, its scales or a bias. The bits of a
// row do not depend on the other rows there, and those of int8 are the CPU's.
inline constexpr int kByteGemmsAtOnce = 3;
namespace cpu  { void byte_gemms(Exec&, ConstTensorView x, const RowQuant& q, std::span<const ByteProduct> products); }
namespace cuda { void byte_gemms(Exec&, ConstTensorView x, const RowQuant& q, std::span<const ByteProduct> products); }
inline void byte_gemms(Exec& ex, ConstTensorView x, const RowQuant& q, std::span<const ByteProduct> products) {
  pick(ex, &cpu::byte_gemms, FEWBIT_CUDA_OP(byte_gemms))(ex, x, q, products);
}
}  // namespace fewbit
