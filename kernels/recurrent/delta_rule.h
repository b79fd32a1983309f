#pragma once
// delta_rule: the gated delta rule, a linear attention whose state is one matrix a head (Yang, Kautz and Hatamizadeh,
// Gated Delta Networks, 2024; with a decay for every key channel: Kimi Linear, 2025).
#include "kernels/exec/exec.h"
namespace fewbit {
// Columns begin … begin + width - 1 of a matrix of activations; the width follows from DeltaArgs.
struct ColumnsAt {
  ConstTensorView x{};
  int64_t begin = 0;
};
struct DeltaArgs {
  int k_heads = 0, v_heads = 0;  // v_heads % k_heads == 0; value head h reads key head h / (v_heads / k_heads)
  int64_t k_dim = 0, v_dim = 0;
};
struct DeltaInputs {
  ColumnsAt q{}, k{};         // k_heads * k_dim wide
  ColumnsAt v{};              // v_heads * v_dim wide
  ConstTensorView beta{};     // [seqs * len, v_heads]
  ConstTensorView decay{};    // [seqs * len, v_heads], or [seqs * len, v_heads * k_dim]: one for every key channel
  ConstTensorView a_log{};    // [v_heads] f32
  ConstTensorView dt_bias{};  // [decay.cols()] f32
};
// Token by token inside each of `seqs` sequences of equal length, for every value head, S being its [k_dim, v_dim]:
//   q = q / |q| / sqrt(k_dim),  k = k / |k|           |x| = sqrt(sum x^2 + 1e-6)
//   S = exp(g) S,  g = -exp(a_log) softplus(decay + dt_bias)    (of the row's channel, where there is one for each)
//   S = S + k (sigmoid(beta) (v - S^T k))^T
//   out = S^T q
//   q, k, v, beta, decay   f32 | bf16, alike
//   state  [seqs, v_heads, k_dim, v_dim]   f32: S before the first token, then S behind the last. data == nullptr: it
//                                          begins at zero and is not kept
//   out    [seqs * len, v_heads * v_dim]   the dtype of q; overwritten
// Everything is f32, rounded once. The CPU takes 64 tokens from the begin of a call as products (delta_chunk.h), so
// that a sequence taken in pieces differs from one taken whole by rounding in f32, and not at all where all pieces but
// the last are multiples of 64. On a GPU the bits are those of the whole, but for bf16 prompts that it takes by
// products of bf16 (delta_chunk.cuh). Their outputs and states differ from f32 by what rounding factors to bf16
// makes (found: 4e-3), and their bits are those of the whole where all pieces but the last are multiples of 64 and the
// last has 32 tokens or more. Errors: on a GPU a k_dim above 256 throws an Error (unsupported).
void check_delta(const DeltaInputs&, int64_t seqs, const DeltaArgs&, TensorView state, TensorView out);
namespace cpu {
void delta_rule(Exec&, const DeltaInputs&, int64_t seqs, const DeltaArgs&, TensorView state, TensorView out);
}
namespace cuda {
void delta_rule(Exec&, const DeltaInputs&, int64_t seqs, const DeltaArgs&, TensorView state, TensorView out);
}
inline void delta_rule(Exec& ex, const DeltaInputs& in, int64_t seqs, const DeltaArgs& a, TensorView state,
                       TensorView out) {
  check_delta(in, seqs, a, state, out);
  pick(ex, &cpu::delta_rule, FEWBIT_CUDA_OP(delta_rule))(ex, in, seqs, a, state, out);
}
}  // namespace fewbit
