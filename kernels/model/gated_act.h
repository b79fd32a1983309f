#pragma once
#include "kernels/exec/exec.h"
namespace fewbit {
enum class ActKind : uint8_t { silu, gelu_tanh };
// out = act(gate) * up, computed in f32, rounded once.
//   gate, up, out  the same shape and dtype, f32 | bf16; out may be gate or up
namespace cpu {
void gated_act(Exec&, ConstTensorView gate, ConstTensorView up, ActKind act, TensorView out);
}
namespace cuda {
void gated_act(Exec&, ConstTensorView gate, ConstTensorView up, ActKind act, TensorView out);
}
inline void gated_act(Exec& ex, ConstTensorView gate, ConstTensorView up, ActKind act, TensorView out) {
  pick(ex, &cpu::gated_act, FEWBIT_CUDA_OP(gated_act))(ex, gate, up, act, out);
}
}  // namespace fewbit
