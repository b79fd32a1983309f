#pragma once
#include "kernels/exec/exec.h"
namespace fewbit {
// The CPU's own layout of an integer linear, made from the neutral form when a checkpoint is loaded: rows of codes,
// two to a byte up to 4 bits (even column in the low nibble), one to a byte above.
struct RowPackedView {
  ConstTensorView codes{};     // u8 [out, ceil(in/2)] or [out, in]
  ConstTensorView scales{};    // f32 [out, G]
  ConstTensorView zeros{};     // u8  [out, G] or null: every zero is 2^(bits-1)
  ConstTensorView group_of{};  // i32 [in] or null
  int bits = 4;
  int64_t in = 0, group = 128;
  int64_t out() const { return codes.rows(); }
};
// y = x W^T + bias.   x [rows, in] f32 | bf16 · bias [out] dtype of x or null · y [rows, out] dtype of x or f32
// Same arithmetic as marlin_gemm: levels exact, f32 sums per group, times the f32 scale. CPU only.
namespace cpu {
void row_gemm(Exec&, ConstTensorView x, const RowPackedView& w, ConstTensorView bias, TensorView y);
}
}  // namespace fewbit
