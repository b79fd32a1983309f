#pragma once
// Products of one x with several weights in 8-bit codes: x becomes codes once for all of them.
#include <span>

#include "kernels/products/bytes/fp8_gemm.h"
#include "kernels/products/bytes/int8_gemm.h"
namespace fewbit {
// int8_gemm or fp8_gemm (by the codes that `q` makes) of every product; kUnrounded goes with f8_e4m3 weights. All codes
// of one type, all y of one dtype; shapes, numerics and errors as in these two ops.
//
// On a GPU x in bf16 with in % 64 == 0 and in >= 1024, and weights at multiples of 16 bytes, take the kernel of
// kernels/products/skinny.cuh: one launch for up to kByteGemmsAtOnce weights or, where x does not fit into shared
// memory, one for each k split. The library's product, where it has one, takes over from
//
//                        x in i8 or f8_e4m3   x unrounded
//   x fits: one launch   17 rows              9 rows
//   several k splits     9 rows               5 rows
//
// The kernel's launch may read weights and scales before the kernel before it in the stream has ended: no work in
// flight may write them. In one launch the bits of a row do not depend on the other rows; those of int8 never do, and
// are the CPU's.
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
