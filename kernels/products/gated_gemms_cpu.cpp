// The gated activation, then the products.
#include "kernels/products/gated_gemms.h"

namespace fewbit::cpu {

void gated_byte_gemms(Exec& ex, ConstTensorView gate, ConstTensorView up, ActKind act, TensorView room,
                      const RowQuant& q, std::span<const ByteProduct> products) {
  cpu::gated_act(ex, gate, up, act, room);
  cpu::byte_gemms(ex, room, q, products);
}

}  // namespace fewbit::cpu
