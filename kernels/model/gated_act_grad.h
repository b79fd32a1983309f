#pragma once
#include "kernels/model/gated_act.h"
namespace fewbit {
// Gradient of gated_act (kernels/model/gated_act.h):   d_gate = dy * up * act'(gate),   d_up = dy * act(gate)
//   gate, up, dy, d_gate, d_up  the same shape, f32; d_gate and d_up are overwritten, and are no other argument
namespace cpu {
void gated_act_grad(Exec&, ConstTensorView gate, ConstTensorView up, ActKind act, ConstTensorView dy, TensorView d_gate,
                    TensorView d_up);
}
namespace cuda {
void gated_act_grad(Exec&, ConstTensorView gate, ConstTensorView up, ActKind act, ConstTensorView dy, TensorView d_gate,
                    TensorView d_up);
}
inline void gated_act_grad(Exec& ex, ConstTensorView gate, ConstTensorView up, ActKind act, ConstTensorView dy,
                           TensorView d_gate, TensorView d_up) {
  pick(ex, &cpu::gated_act_grad, FEWBIT_CUDA_OP(gated_act_grad))(ex, gate, up, act, dy, d_gate, d_up);
}
}  // namespace fewbit
