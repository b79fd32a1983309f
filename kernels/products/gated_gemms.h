#pragma once
#include "kernels/model/gated_act.h"
#include "kernels/products/bytes/byte_gemms.h"
namespace fewbit {
// Products of gated_act(gate, up) (kernels/model/gated_act.h): on a GPU many rows become codes where they are
// activated. The bits are those of gated_act, then byte_gemms.
//   gate, up, room [rows, in] alike; room for what comes between, may be gate or up; what it holds afterwards is not
//     said.
//   The rest as in kernels/products/bytes/byte_gemms.h.
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
