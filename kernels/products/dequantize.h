#pragma once
#include "kernels/exec/exec.h"
#include "src/core/quantized_linear.h"
namespace fewbit {
// Codes on a grid, as tensors on one device. See src/core/quantized_linear.h for the meaning.
struct CodedView {
  ConstTensorView codes{};     // [out, in]  u8
  ConstTensorView scales{};    // [ceil(out / out_group), G] f32
  ConstTensorView zeros{};     // [out, G]   u8; data == nullptr: every zero is 2^(bits-1)
  ConstTensorView group_of{};  // [in]       i32; data == nullptr: column i is in group i / group
  ConstTensorView levels{};    // [256]      f32; what a code of a float grid is worth; data == nullptr: integers
  int bits = 4;
  int64_t group = 128;    // > 0
  int64_t out_group = 1;  // outputs that share a scale
};
// `levels` of a float grid, on the host.
Tensor code_levels(Grid grid);
// w[o, i] = (codes[o, i] - zero) * scale, or levels[codes[o, i]] * scale, rounded to the dtype of w (f32 | bf16).   w
// [out, in]; overwritten
namespace cpu {
void dequantize(Exec&, const CodedView&, TensorView w);
}
namespace cuda {
void dequantize(Exec&, const CodedView&, TensorView w);
}
inline void dequantize(Exec& ex, const CodedView& q, TensorView w) {
  pick(ex, &cpu::dequantize, FEWBIT_CUDA_OP(dequantize))(ex, q, w);
}
}  // namespace fewbit
