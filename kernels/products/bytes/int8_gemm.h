#pragma once
#include "kernels/products/bytes/quantize_rows.h"
namespace fewbit {
// A weight in bytes with one scale per output: value(o, i) = code(o, i) * scale(o).
struct ByteWeightView {
  ConstTensorView codes{};   // [out, in]  i8; f8_e4m3 for kernels/products/bytes/fp8_gemm.h
  ConstTensorView scales{};  // [out]      f32
};
// One of several products of one x: kernels/products/bytes/byte_gemms.h.
struct ByteProduct {
  ByteWeightView w{};
  ConstTensorView bias{};  // [out] dtype of x or null
  TensorView y{};          // [rows, out] dtype of x or f32
  bool add = false;        // y += the product, rounded once; no bias then
};
// y = Q(x) W^T + bias, both in int8, products summed in int32 (exact), then
//   y[r, o] = sum * x_scale[r] * scale[o] + bias[o]   in f32, rounded once.
//   x [rows, in] f32 | bf16, quantized by `q` (i8, no groups) · bias [out] dtype of x or null · y [rows, out] dtype of
//     x
//   or f32; overwritten. in < 2^17, so that int32 holds every sum. CPU and CUDA give the same bits.
// CUDA: up to 16 rows by a kernel of our own, more by cuBLASLt where in and out are multiples of 16, else again by
// ours.
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
