#pragma once
// sigmoid_gate: a branch times the logistic function of its gate.
#include "kernels/exec/exec.h"
namespace fewbit {
// out[r, c] = x[r, c] * sigmoid(gate[r, c / (cols / gates)]), computed in f32, rounded once. A gate for every feature
// (gated attention) or one for a whole row (a shared expert).
//   x, out  [rows, cols]   f32 | bf16, alike; out is overwritten and may be x
//   gate    [rows, gates]  the dtype of x; gates divides cols
namespace cpu {
void sigmoid_gate(Exec&, ConstTensorView gate, ConstTensorView x, TensorView out);
}
namespace cuda {
void sigmoid_gate(Exec&, ConstTensorView gate, ConstTensorView x, TensorView out);
}
inline void sigmoid_gate(Exec& ex, ConstTensorView gate, ConstTensorView x, TensorView out) {
  FEWBIT_ASSERT(out.shape == x.shape && out.dtype == x.dtype && gate.dtype == x.dtype);
  FEWBIT_ASSERT(gate.rows() == x.rows() && gate.cols() > 0 && x.cols() % gate.cols() == 0);
  pick(ex, &cpu::sigmoid_gate, FEWBIT_CUDA_OP(sigmoid_gate))(ex, gate, x, out);
}
}  // namespace fewbit
