#pragma once
// What a mixture of experts begins with: the norm of a few tokens, and the router's logits of it.
#include "kernels/products/normed_gemms.h"

namespace fewbit {

// normed = rms_norm(x); logits = normed W^T + bias.
//   x       [tokens, hidden]   bf16
//   w       [experts, hidden]  bf16, which no work in flight writes; bias [experts] or null
//   normed  [tokens, hidden]   bf16, and not x; overwritten
//   logits  [tokens, experts]  f32; overwritten
// The bits of `normed` are those of rms_norm(), except that on a GPU a row of at most 1,024 values adds its squares in
// another order. The logits' sums are in f32, their order depends on the shape alone: the bits of a token do not depend
// on the others.
namespace cpu {
void router_logits(Exec&, ConstTensorView x, const RowNorm&, ConstTensorView w, ConstTensorView bias, TensorView normed,
                   TensorView logits);
}
namespace cuda {
void router_logits(Exec&, ConstTensorView x, const RowNorm&, ConstTensorView w, ConstTensorView bias, TensorView normed,
                   TensorView logits);
}
inline void router_logits(Exec& ex, ConstTensorView x, const RowNorm& norm, ConstTensorView w, ConstTensorView bias,
                          TensorView normed, TensorView logits) {
  FEWBIT_ASSERT(x.dtype == DType::bf16 && w.dtype == DType::bf16 && norm.weight.dtype == DType::bf16);
  FEWBIT_ASSERT(normed.dtype == DType::bf16 && normed.shape == x.shape && logits.dtype == DType::f32);
  FEWBIT_ASSERT(w.cols() == x.cols() && norm.weight.numel() == x.cols());
  FEWBIT_ASSERT(logits.rows() == x.rows() && logits.cols() == w.rows());
  FEWBIT_ASSERT(!bias.data || (bias.dtype == DType::bf16 && bias.numel() == w.rows()));
  pick(ex, &cpu::router_logits, FEWBIT_CUDA_OP(router_logits))(ex, x, norm, w, bias, normed, logits);
}

}  // namespace fewbit
