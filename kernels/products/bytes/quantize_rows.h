#pragma once
#include "kernels/exec/exec.h"
namespace fewbit {
// How the rows of an activation become 8-bit codes: value = code * scale.
struct RowQuant {
  // i8: [-128, 127] · f8_e4m3: saturating at +-448 · f16: no rounding, the scale is a power of two that keeps the row
  // inside of f16 (bf16 values stay what they are down to 2^-31 of the row's largest)
  DType codes = DType::i8;
  float fixed = 0;    // the scale of all rows (static); 0: one per row, max|x| / 127 or max|x| / 448 (dynamic)
  int64_t group = 0;  // columns that share a dynamic scale, a divisor of the columns; 0: the whole row
};
inline constexpr RowQuant kUnrounded{.codes = DType::f16};
// codes[r, i] = round(x[r, i] * (1 / scale)), to nearest even; the scale of a row of zeros is 1. Where a row (or group)
// holds a NaN or an infinity its scale is one too, so that nothing of it comes out of a product as a number.
//   x [rows, in] f32 | bf16 · codes [rows, in] of the type above · scales [rows, in / group] f32; both overwritten
namespace cpu {
void quantize_rows(Exec&, ConstTensorView x, const RowQuant&, TensorView codes, TensorView scales);
}
namespace cuda {
void quantize_rows(Exec&, ConstTensorView x, const RowQuant&, TensorView codes, TensorView scales);
}
inline void quantize_rows(Exec& ex, ConstTensorView x, const RowQuant& q, TensorView codes, TensorView scales) {
  pick(ex, &cpu::quantize_rows, FEWBIT_CUDA_OP(quantize_rows))(ex, x, q, codes, scales);
}
// y = the values of the 8-bit codes that quantize_rows would make, rounded to the dtype of y.   y [rows, in] f32 |
// bf16; may be x
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
//   x [rows, in] f32 | bf16 · w [out, in] the dtype of x, as in kernels/products/gemm.h; or f32, then the rounded x is
//     f32 too
//     and
//   a bf16 y is rounded once, as an 8-bit product rounds it · bias [out] dtype of w or null · y [rows, out] dtype of x
//     or f32
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
