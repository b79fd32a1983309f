#pragma once
// Products with weights in int8 codes, x in int8 codes; and the weight and the product that all ops on bytes take.
#include "kernels/products/bytes/quantize_rows.h"
namespace fewbit {
// A weight in bytes with one scale per output: value(o, i) = code(o, i) * scale(o).
struct ByteWeightView {
  ConstTensorView codes{};   // [out, in]  i8, or f8_e4m3 in kernels/products/bytes/fp8_gemm.h
  ConstTensorView scales{};  // [out]      f32
};
// One of several products of one x (kernels/products/bytes/byte_gemms.h).
struct ByteProduct {
  ByteWeightView w{};
  ConstTensorView bias{};  // [out] dtype of x or null
  TensorView y{};          // [rows, out] dtype of x or f32
  bool add = false;        // y += the product, added in f32 and rounded once; no bias then
};
// y[r, o] = sum_i(x_code[r, i] w_code[o, i]) * x_scale[r] * scale[o] + bias[o]
//   x     [rows, in]   f32 | bf16; in < 2^17, so that int32 holds every sum
//   q     codes i8, no groups: how x becomes codes (kernels/products/bytes/quantize_rows.h)
//   w     codes [out, in] i8, scales [out] f32
//   bias  [out]        the dtype of x, or null
//   y     [rows, out]  the dtype of x, or f32; overwritten
// Numerics: sums are int32, exact; then f32, rounded after each factor and after the bias, and once more to y, to
// nearest even. CPU and CUDA give the same bits.
// Errors: shapes or dtypes other than these stop the process (FEWBIT_ASSERT).
namespace cpu {
void int8_gemm(Exec&, ConstTensorView x, const RowQuant& q, const ByteWeightView& w, ConstTensorView bias,
               TensorView y);
}
namespace cuda {
void int8_gemm(Exec&, ConstTensorView x, const RowQuant& q, const ByteWeightView& w, ConstTensorView bias,
               TensorView y);
}
inline void int8_gemm(Exec& ex, ConstTensorView x, const RowQuant& q, const ByteWeightView& w, ConstTensorView bias,
                      TensorView y) {
  pick(ex, &cpu::int8_gemm, FEWBIT_CUDA_OP(int8_gemm))(ex, x, q, w, bias, y);
}
}  // namespace fewbit
