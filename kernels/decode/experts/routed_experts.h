#pragma once
// The routing of a mixture of experts and the experts of a few tokens, in as few launches as the device allows.
#include "kernels/decode/experts/few_experts.h"
#include "kernels/model/route.h"

namespace fewbit {

// route(), then few_experts() with what it chose; the same bits.
//   x, out       [tokens, hidden]   as in kernels/decode/experts/few_experts.h
//   logits       [tokens, experts]  f32
//   ids, shares  [tokens, top_k]    i32 and f32: room; what they hold afterwards is not said
namespace cpu {
void routed_experts(Exec&, ConstTensorView x, ConstTensorView logits, const RouteRule&, TensorView ids,
                    TensorView shares, const ExpertMixture&, TensorView out, bool add);
}
namespace cuda {
void routed_experts(Exec&, ConstTensorView x, ConstTensorView logits, const RouteRule&, TensorView ids,
                    TensorView shares, const ExpertMixture&, TensorView out, bool add);
}
inline void routed_experts(Exec& ex, ConstTensorView x, ConstTensorView logits, const RouteRule& rule, TensorView ids,
                           TensorView shares, const ExpertMixture& m, TensorView out, bool add = false) {
  FEWBIT_ASSERT(x.dtype == DType::bf16 && out.dtype == DType::bf16 && out.shape == x.shape);
  FEWBIT_ASSERT(logits.rows() == x.rows() && logits.cols() == static_cast<int64_t>(m.up.size()));
  pick(ex, &cpu::routed_experts, FEWBIT_CUDA_OP(routed_experts))(ex, x, logits, rule, ids, shares, m, out, add);
}

}  // namespace fewbit
