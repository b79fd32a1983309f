#pragma once
// The two ends of a mixture of experts: which experts a token goes to, and the weighted sum of what they answer.
#include "kernels/exec/exec.h"
namespace fewbit {
// route: ids[t, :] = the top_k experts of token t, best first; weights[t, :] = their softmax over all experts, divided
// by its sum over the chosen ones where `renormalise` is set (Mixtral: Jiang et al., 2024, section 2.1). Ties go to the
// lower index. A NaN is never chosen before a number, and makes all weights of its token NaN.
//   logits   [tokens, experts]  f32, experts >= top_k >= 1
//   ids      [tokens, top_k]    i32; overwritten
//   weights  [tokens, top_k]    f32; overwritten
// scatter_add_rows: y[rows[i], :] += weights[i] * x[i, :].
//   x        [n, cols]       f32 | bf16
//   rows     [n]             i32 in [0, y.rows()), none twice: every sum is in the order of the calls
//   weights  [n]             f32
//   y        [tokens, cols]  f32, added to
// The tokens of an expert are gathered with embed(), scale 1.
namespace cpu {
void route(Exec&, ConstTensorView logits, bool renormalise, TensorView ids, TensorView weights);
void scatter_add_rows(Exec&, ConstTensorView x, ConstTensorView rows, ConstTensorView weights, TensorView y);
}  // namespace cpu
namespace cuda {
void route(Exec&, ConstTensorView logits, bool renormalise, TensorView ids, TensorView weights);
void scatter_add_rows(Exec&, ConstTensorView x, ConstTensorView rows, ConstTensorView weights, TensorView y);
}  // namespace cuda
inline void route(Exec& ex, ConstTensorView logits, bool renormalise, TensorView ids, TensorView weights) {
  pick(ex, &cpu::route, FEWBIT_CUDA_OP(route))(ex, logits, renormalise, ids, weights);
}
inline void scatter_add_rows(Exec& ex, ConstTensorView x, ConstTensorView rows, ConstTensorView weights, TensorView y) {
  pick(ex, &cpu::scatter_add_rows, FEWBIT_CUDA_OP(scatter_add_rows))(ex, x, rows, weights, y);
}
}  // namespace fewbit
