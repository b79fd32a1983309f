#pragma once
// Activations as 8-bit codes, row by row, and the dense product that an 8-bit one stands for.
#include "kernels/exec/exec.h"
namespace fewbit {
// How the rows of an activation become codes: value = code * scale.
struct RowQuant {
  // i8: [-128, 127]. f8_e4m3: saturating at +-448. f16: no rounding; the scale is a power of two that brings the row
  // into the range of f16, which then holds bf16 values exactly down to 2^-31 of the row's largest.
  DType codes = DType::i8;
  // The scale of all rows (static); 0: one for each row, max|x| / 127 or max|x| / 448, at least 1e-30 (dynamic).
  float fixed = 0;
  int64_t group = 0;  // columns that share a dynamic scale, of which the last may be fewer; 0: the whole row
};
inline constexpr RowQuant kUnrounded{.codes = DType::f16};

// codes[r, i] = round(x[r, i] * (1 / scale)) in f32, to nearest even.
//   x       [rows, in]          f32 | bf16
//   codes   [rows, in]          q.codes; overwritten
//   scales  [rows, ceil(in / group)]  f32 ([rows] without groups); overwritten
// The scale of a row (or group) of zeros is 1. Where it holds a NaN or an infinity, its scale is NaN or infinite too,
// so that no product of it is a number. CPU and CUDA give the same bits.
// Errors: shapes or dtypes other than these stop the process (FEWBIT_ASSERT), here and in the ops below.
namespace cpu {
void quantize_rows(Exec&, ConstTensorView x, const RowQuant&, TensorView codes, TensorView scales);
}
namespace cuda {
void quantize_rows(Exec&, ConstTensorView x, const RowQuant&, TensorView codes, TensorView scales);
}
inline void quantize_rows(Exec& ex, ConstTensorView x, const RowQuant& q, TensorView codes, TensorView scales) {
  pick(ex, &cpu::quantize_rows, FEWBIT_CUDA_OP(quantize_rows))(ex, x, q, codes, scales);
}
// y = the values (code * scale, rounded to the dtype of y) of the codes that quantize_rows() makes.
//   x  [rows, in]  f32 | bf16
//   q              codes i8 or f8_e4m3
//   y  [rows, in]  f32 | bf16; overwritten; may be x
namespace cpu {
void round_rows(Exec&, ConstTensorView x, const RowQuant&, TensorView y);
}
namespace cuda {
void round_rows(Exec&, ConstTensorView x, const RowQuant&, TensorView y);
}
inline void round_rows(Exec& ex, ConstTensorView x, const RowQuant& q, TensorView y) {
  pick(ex, &cpu::round_rows, FEWBIT_CUDA_OP(round_rows))(ex, x, q, y);
}
// y = round_rows(x) W^T + bias: the dense product that an 8-bit one stands for.
//   x     [rows, in]   f32 | bf16
//   w     [out, in]    the dtype of x, or f32; the rounded x has the dtype of w
//   bias  [out]        the dtype of w, or null
//   y     [rows, out]  the dtype of x, or f32; overwritten
// Numerics as gemm() (kernels/products/gemm.h). With a w in f32 and y in bf16 the f32 sums are rounded once, as an
// 8-bit product rounds them.
namespace cpu {
void rounded_gemm(Exec&, ConstTensorView x, const RowQuant&, ConstTensorView w, ConstTensorView bias, TensorView y);
}
namespace cuda {
void rounded_gemm(Exec&, ConstTensorView x, const RowQuant&, ConstTensorView w, ConstTensorView bias, TensorView y);
}
inline void rounded_gemm(Exec& ex, ConstTensorView x, const RowQuant& q, ConstTensorView w, ConstTensorView bias,
                         TensorView y) {
  pick(ex, &cpu::rounded_gemm, FEWBIT_CUDA_OP(rounded_gemm))(ex, x, q, w, bias, y);
}
}  // namespace fewbit
