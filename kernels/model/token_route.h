#pragma once
// token_route: the weights of the experts that a token goes to by its id alone (hashed layers of DeepSeek-V4).
#include "kernels/exec/exec.h"
namespace fewbit {
// weights[t, e] = the sum of s_e / (sum of the chosen s where `renormalise`, + 1e-20) * scaling over the entries of
// table[tokens[t], :] that are e, with s_e = sqrt(softplus(logits[t, e])); 0 for all other experts.
//   logits   [tokens, experts]  f32
//   table    [vocab, top_k]     i32, in [0, experts)
//   ids      [tokens]           i32, in [0, vocab)
//   weights  [tokens, experts]  f32 | bf16; overwritten
struct TokenRouteRule {
  bool renormalise;
  float scaling;
};
namespace cpu {
void token_route(Exec&, ConstTensorView logits, ConstTensorView table, ConstTensorView ids, const TokenRouteRule&,
                 TensorView weights);
}
namespace cuda {
void token_route(Exec&, ConstTensorView logits, ConstTensorView table, ConstTensorView ids, const TokenRouteRule&,
                 TensorView weights);
}
inline void token_route(Exec& ex, ConstTensorView logits, ConstTensorView table, ConstTensorView ids,
                        const TokenRouteRule& rule, TensorView weights) {
  FEWBIT_ASSERT(logits.dtype == DType::f32 && table.dtype == DType::i32 && ids.dtype == DType::i32);
  FEWBIT_ASSERT(weights.shape == logits.shape && ids.numel() == logits.rows() && table.cols() <= logits.cols());
  pick(ex, &cpu::token_route, FEWBIT_CUDA_OP(token_route))(ex, logits, table, ids, rule, weights);
}
}  // namespace fewbit
