#pragma once
// gated_act_grad: the gradient of gated_act (kernels/model/gated_act.h).
#include "kernels/model/gated_act.h"
namespace fewbit {
// d_gate = dy * up * act'(gate),   d_up = dy * act(gate)
//   gate, up, dy  f32, one shape
//   d_gate, d_up  f32, the same shape; overwritten, and no memory of another argument
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
