#pragma once
// Products with weights in E4M3 codes, x in E4M3 codes or as it is.
#include "kernels/products/bytes/int8_gemm.h"
namespace fewbit {
// y = Q(x) W^T + bias.
//   x     [rows, in]      f32 | bf16
//   q     codes f8_e4m3:  y[r, o] = (sum_i x_code w_code) * x_scale[r] * scale[o] + bias[o]; no groups
//         kUnrounded:     y[r, o] = (sum_i x[r, i] w_code) * scale[o] + bias[o]   (weight-only FP8)
//   w     codes [out, in] f8_e4m3, scales [out] f32
//   bias  [out]           the dtype of x, or null
//   y     [rows, out]     the dtype of x, or f32; overwritten
// Numerics: sums, scales and bias in f32, then y is rounded once, to nearest even. The sums are exact products added in
// f32, except
//   - on FP8 tensor cores through cuBLASLt, whose sums are a little less than f32 (tests/support/tolerance.h);
//   - kUnrounded, CUDA, up to 512 rows in bf16 on FP8 tensor cores: x as two E4M3 terms, exact down to 2^-21 of a row's
//     largest value;
//   - kUnrounded, CUDA, otherwise: code * scale is rounded to the dtype of x for a dense product;
//   - CPU without AMX and AVX512-BF16, or x in f32: code * scale is rounded to f32 on both sides, then multiplied with
//   f32 sums.
// Which of them runs: kernels/products/bytes/README.md. A NaN code gives NaN in its output.
// Errors: shapes or dtypes other than these stop the process (FEWBIT_ASSERT).
namespace cpu {
void fp8_gemm(Exec&, ConstTensorView x, const RowQuant& q, const ByteWeightView& w, ConstTensorView bias, TensorView y);
// The numbers of codes f8_e4m3 as bf16, which holds them; as many of both.
void f8_as_bf16(ConstTensorView codes, TensorView values);
}  // namespace cpu
namespace cuda {
void fp8_gemm(Exec&, ConstTensorView x, const RowQuant& q, const ByteWeightView& w, ConstTensorView bias, TensorView y);
}
inline void fp8_gemm(Exec& ex, ConstTensorView x, const RowQuant& q, const ByteWeightView& w, ConstTensorView bias,
                     TensorView y) {
  pick(ex, &cpu::fp8_gemm, FEWBIT_CUDA_OP(fp8_gemm))(ex, x, q, w, bias, y);
}
// Whether this device multiplies E4M3 codes itself: CUDA of compute capability 8.9 and above (for the notes of a run).
bool has_fp8_products(const Exec& ex);
}  // namespace fewbit
