#pragma once
#include <span>

#include "kernels/products/bytes/fp8_gemm.h"
#include "kernels/products/bytes/int8_gemm.h"
namespace fewbit {
// int8_gemm or fp8_gemm for several weights of one x, which is quantized once; all codes of the type that `q` makes
// (kUnrounded: f8_e4m3), y alike in dtype. On a GPU up to 16 rows in bf16 take one launch (up to kByteGemmsAtOnce
// weights at a time) that reads the weights as they lie (kernels/products/skinny.cuh) and may begin before the kernel
// before it has ended: no work in flight may write a weight, its scales or a bias. Where x finds no room there,
// several, each with a part of k; but from 9 rows on (kUnrounded: 5) the library's product instead, where it has one,
// and kUnrounded from 9 rows on always: it is quicker. The bits of a row do not depend on the other rows as long as one
// launch takes all; those of int8 are always the CPU's.
inline constexpr int kByteGemmsAtOnce = 3;
namespace cpu {
void byte_gemms(Exec&, ConstTensorView x, const RowQuant& q, std::span<const ByteProduct> products);
}
namespace cuda {
void byte_gemms(Exec&, ConstTensorView x, const RowQuant& q, std::span<const ByteProduct> products);
}
inline void byte_gemms(Exec& ex, ConstTensorView x, const RowQuant& q, std::span<const ByteProduct> products) {
  pick(ex, &cpu::byte_gemms, FEWBIT_CUDA_OP(byte_gemms))(ex, x, q, products);
}
}  // namespace fewbit
