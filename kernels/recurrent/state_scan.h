#pragma once
// state_scan: the selective state space of Mamba-2, a recurrence whose state is one matrix a head (Dao and Gu,
// Transformers are SSMs, 2024, section 7).
#include "kernels/exec/exec.h"
namespace fewbit {
struct ScanArgs {
  int heads = 0, groups = 0;  // heads % groups == 0; head h reads the B and C of group h / (heads / groups)
  int64_t head_dim = 0, state = 0;
  int64_t width() const { return heads * head_dim + 2 * groups * state; }  // of x, B and C together
};
struct ScanInputs {
  ConstTensorView x{};        // [seqs * len, width()]: x [heads, head_dim], then B and C [groups, state] each
  ConstTensorView dt{};       // [seqs * len, heads]
  ConstTensorView a_log{};    // [heads] f32
  ConstTensorView dt_bias{};  // [heads] f32
  ConstTensorView d{};        // [heads] f32
};
// Token by token inside each of `seqs` sequences of equal length, for every head, S being its [head_dim, state]:
//   t = softplus(dt + dt_bias)
//   S = exp(-exp(a_log) t) S + t x B^T
//   out = S C + d x
//   x, dt  f32 | bf16, alike
//   state  [seqs, heads, head_dim, state]  f32: S before the first token, then S behind the last. data == nullptr: it
//                                          begins at zero and is not kept
//   out    [seqs * len, heads * head_dim]  the dtype of x; overwritten
// Everything is f32, rounded once. A sequence taken in pieces through its state has the bits of one taken whole.
// Errors: on a GPU a state above 256 throws an Error (unsupported).
void check_scan(const ScanInputs&, int64_t seqs, const ScanArgs&, TensorView state, TensorView out);
namespace cpu {
void state_scan(Exec&, const ScanInputs&, int64_t seqs, const ScanArgs&, TensorView state, TensorView out);
}
namespace cuda {
void state_scan(Exec&, const ScanInputs&, int64_t seqs, const ScanArgs&, TensorView state, TensorView out);
}
inline void state_scan(Exec& ex, const ScanInputs& in, int64_t seqs, const ScanArgs& a, TensorView state,
                       TensorView out) {
  check_scan(in, seqs, a, state, out);
  pick(ex, &cpu::state_scan, FEWBIT_CUDA_OP(state_scan))(ex, in, seqs, a, state, out);
}
}  // namespace fewbit
