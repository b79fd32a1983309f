#pragma once
#include "kernels/exec/exec.h"
namespace fewbit {
// The two ends of a mixture of experts.
//   route:            ids[t, :] = the top_k experts of token t, best first; weights[t, :] = their softmax over all
//                     experts, divided by its sum over the chosen ones where `renormalise` is set. Ties go to the
//                     lower index; a NaN is never chosen before a number, and makes the weights of its token NaN.
//     logits [tokens, experts] f32, experts >= top_k · ids [tokens, top_k] i32 · weights [tokens, top_k] f32;
//     both overwritten
//   scatter_add_rows: y[rows[i], :] += weights[i] * x[i, :]. No row occurs twice, so the sum has one order: that of
//                     the calls.
//     x [n, cols] f32 | bf16 · rows [n] i32 in [0, y.rows()) · weights [n] f32 · y [tokens, cols] f32
// Rows of the tokens of an expert are gathered with embed(), scale 1.
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
