// Many rows are activated by the kernel that makes their codes (prepare_rows.cuh); all others by an activation, then
// the products.
#include "kernels/products/gated_gemms.h"

#include "kernels/products/bytes/byte_product.cuh"

namespace fewbit::cuda {

void gated_byte_gemms(Exec& ex, ConstTensorView gate, ConstTensorView up, ActKind act, TensorView room,
                      const RowQuant& q, std::span<const ByteProduct> products) {
  if (gate.rows() == 0 || products.empty()) return;
  FEWBIT_ASSERT(gate.shape == up.shape && gate.shape == room.shape && gate.dtype == up.dtype);
  if (byte_product::try_prepared_gemms(ex.cuda_state(), {.x = gate, .up = up, .act = act}, q, products)) return;
  cuda::gated_act(ex, gate, up, act, room);
  cuda::byte_gemms(ex, room, q, products);
}

}  // namespace fewbit::cuda
