#pragma once
// The two ends of a mixture of experts: which experts a token goes to, and the weighted sum of what they answer.
#include "kernels/exec/exec.h"
namespace fewbit {
// route: ids[t, :] = the top_k experts of token t, best first; weights[t, :] = their scores, divided by the sum of the
// chosen ones where `renormalise` is set (Mixtral: Jiang et al., 2024, section 2.1), times `scaling`. Ties go to the
// lower index. A NaN is never chosen before a number, and makes all weights of its token NaN.
//   logits   [tokens, experts]  f32, experts >= top_k >= 1
// A score is the softmax over all experts, the logistic function of the logit or the root of its softplus
// (DeepSeek-V4), or the logit itself, where the weights were found before (token_route). The choice is
// by score + bias; where there are groups (of consecutive experts, alike in number) only those of the best_groups
// groups take part whose `judges` best are largest in sum: two (DeepSeek-V3, 2024, section 2.1.2), or the best alone
// (DeepSeek-V2, 2024, section 2.2.2).
//   ids      [tokens, top_k]    i32; overwritten
//   weights  [tokens, top_k]    f32; overwritten
// scatter_add_rows: y[rows[i], :] += weights[i] * x[i, :].
//   x        [n, cols]       f32 | bf16
//   rows     [n]             i32 in [0, y.rows()), none twice: every sum is in the order of the calls
//   weights  [n]             f32
//   y        [tokens, cols]  f32, added to
// The tokens of an expert are gathered with embed(), scale 1.
enum class RouteScore : uint8_t { softmax, sigmoid, root_softplus, given };
struct RouteRule {
  bool renormalise = true;
  RouteScore score = RouteScore::softmax;
  float scaling = 1;
  int groups = 1, best_groups = 1;
  int judges = 2;                  // at most the experts of a group
  ConstTensorView bias{};          // [experts] f32; data == nullptr: none
  float logit_scale = 1;           // > 0; the logits are multiplied by it first
  ConstTensorView expert_scale{};  // [experts] f32, on the finished weights; data == nullptr: none
};
namespace cpu {
void route(Exec&, ConstTensorView logits, const RouteRule&, TensorView ids, TensorView weights);
void scatter_add_rows(Exec&, ConstTensorView x, ConstTensorView rows, ConstTensorView weights, TensorView y);
}  // namespace cpu
namespace cuda {
void route(Exec&, ConstTensorView logits, const RouteRule&, TensorView ids, TensorView weights);
void scatter_add_rows(Exec&, ConstTensorView x, ConstTensorView rows, ConstTensorView weights, TensorView y);
}  // namespace cuda
inline void route(Exec& ex, ConstTensorView logits, const RouteRule& rule, TensorView ids, TensorView weights) {
  const int64_t experts = logits.cols();
  FEWBIT_ASSERT(logits.dtype == DType::f32 && ids.dtype == DType::i32 && weights.dtype == DType::f32);
  FEWBIT_ASSERT(ids.rows() == logits.rows() && ids.shape == weights.shape && ids.cols() >= 1 && ids.cols() <= experts);
  FEWBIT_ASSERT(rule.groups >= 1 && experts % rule.groups == 0 && (rule.judges == 1 || rule.judges == 2));
  FEWBIT_ASSERT(rule.groups == 1 || experts / rule.groups >= rule.judges);
  FEWBIT_ASSERT(rule.best_groups >= 1 && rule.best_groups <= rule.groups);
  FEWBIT_ASSERT(ids.cols() <= experts / rule.groups * rule.best_groups);
  FEWBIT_ASSERT(!rule.bias.data || (rule.bias.dtype == DType::f32 && rule.bias.numel() == experts));
  FEWBIT_ASSERT(!rule.expert_scale.data ||
                (rule.expert_scale.dtype == DType::f32 && rule.expert_scale.numel() == experts));
  pick(ex, &cpu::route, FEWBIT_CUDA_OP(route))(ex, logits, rule, ids, weights);
}
inline void scatter_add_rows(Exec& ex, ConstTensorView x, ConstTensorView rows, ConstTensorView weights, TensorView y) {
  pick(ex, &cpu::scatter_add_rows, FEWBIT_CUDA_OP(scatter_add_rows))(ex, x, rows, weights, y);
}
// token_route: the weights of the experts that a token goes to by its id alone (hashed layers of DeepSeek-V4).
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
