#pragma once
// Activations as codes of 8 or 4 bits, row by row, and the dense product that one of codes stands for.
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
  // What holds the scales of groups. f8_e4m3 and f8_e8m0: the codes are E2M1, and only their values are made
  // (round_rows, rounded_gemm; `codes` is then u8). f8_e4m3, as NVFP4: max|x| / 6 in E4M3 of `fixed`, which is the
  // scale of all rows above them. f8_e8m0, as MXFP4: a power of two that brings max|x| into [3.5, 7), where E2M1 ends
  // at 6.
  DType scales = DType::f32;
  // Of 4 bits: the hundredths of max|x| that the levels reach. A row without outliers gets so much finer steps that its
  // few values above cost less than they save.
  uint8_t reach = 100;
  // Of i8 codes, 8 or 4. With 4 only values are made, of levels from -8 to 7 under max|x| / 7.5, as compressed-tensors
  // 0.17 has them (calculate_qparams).
  int bits = 8;
  // > 0: the rows are rounded in another basis: turned by orthonormal Hadamard matrices of so many columns, rounded,
  // and turned back. A power of two that divides the columns. Only values are made.
  int64_t turn = 0;
  bool only_values() const { return scales != DType::f32 || bits != 8 || turn != 0; }
  bool operator==(const RowQuant&) const = default;
};
inline constexpr RowQuant kUnrounded{.codes = DType::f16};
inline constexpr int64_t kMostFp4Group = 64;
// Whether the codes are E2M1; stops the process where the rest of `q` does not go with that.
inline bool is_fp4(const RowQuant& q) {
  if (q.scales == DType::f32) return false;
  FEWBIT_ASSERT(q.codes == DType::u8 && q.group > 0 && q.group <= kMostFp4Group);
  FEWBIT_ASSERT(q.scales == DType::f8_e4m3 ? q.fixed > 0 : q.scales == DType::f8_e8m0 && q.fixed == 0);
  return true;
}

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
//   q              codes i8 or f8_e4m3, or E2M1 with groups of at most 64
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
