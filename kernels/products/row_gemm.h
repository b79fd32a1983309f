#pragma once
// Products with integer weights of 1 to 8 bits in the CPU's own layout.
#include "kernels/exec/exec.h"
namespace fewbit {
// The CPU's own layout of an integer linear, made from the neutral form (src/core/quantized_linear.h) when a checkpoint
// is loaded: rows of codes, two to a byte up to 4 bits (even column in the low nibble), one to a byte above.
//   value(o, i) = (code(o, i) - zeros[o, g]) * scales[o, g]   g = group_of ? group_of[i] : i / group
struct RowPackedView {
  ConstTensorView codes{};     // u8 [out, ceil(in / 2)] up to 4 bits, u8 [out, in] above
  ConstTensorView scales{};    // f32 [out, G], G groups
  ConstTensorView zeros{};     // u8 [out, G], or null: every zero is 2^(bits - 1)
  ConstTensorView group_of{};  // i32 [in], or null: groups of consecutive columns
  int bits = 4;
  int64_t in = 0, group = 128;
  int64_t out() const { return codes.rows(); }
};
// y = x W^T + bias, on the CPU alone (kernels/products/marlin/marlin_gemm.h is the op of both devices).
//   x     [rows, in]   f32 | bf16
//   bias  [out]        the dtype of x, or null
//   y     [rows, out]  the dtype of x, or f32; overwritten
// Numerics: x in bf16 on a CPU with AMX or AVX512-BF16, or up to 8 rows, with consecutive groups: levels (code - zero)
// are exact, their products summed in f32 over each group and multiplied by the f32 scale; otherwise values are made in
// f32 first, then multiplied with f32 sums. The bias is added in f32, then y is rounded once, to nearest even. Errors:
// shapes or dtypes other than these stop the process (FEWBIT_ASSERT).
namespace cpu {
void row_gemm(Exec&, ConstTensorView x, const RowPackedView& w, ConstTensorView bias, TensorView y);
}
}  // namespace fewbit
