#pragma once
// Products of a gated activation: gated_act, then byte_gemms, in as few launches as the GPU allows.
#include "kernels/model/gated_act.h"
#include "kernels/products/bytes/byte_gemms.h"
namespace fewbit {
// byte_gemms(gated_act(gate, up)): the bits, and the errors, are those of the ops one after another.
//   gate, up  [rows, in]  f32 | bf16, of one dtype
//   act                   as in kernels/model/gated_act.h
//   room      [rows, in]  the same dtype; may be gate or up: scratch room, its content afterwards is undefined
//   q, products           as in kernels/products/bytes/byte_gemms.h
namespace cpu {
void gated_byte_gemms(Exec&, ConstTensorView gate, ConstTensorView up, ActKind act, TensorView room, const RowQuant& q,
                      std::span<const ByteProduct> products);
}
namespace cuda {
void gated_byte_gemms(Exec&, ConstTensorView gate, ConstTensorView up, ActKind act, TensorView room, const RowQuant& q,
                      std::span<const ByteProduct> products);
}
inline void gated_byte_gemms(Exec& ex, ConstTensorView gate, ConstTensorView up, ActKind act, TensorView room,
                             const RowQuant& q, std::span<const ByteProduct> products) {
  pick(ex, &cpu::gated_byte_gemms, FEWBIT_CUDA_OP(gated_byte_gemms))(ex, gate, up, act, room, q, products);
}
}  // namespace fewbit
