// Products of 8-bit codes for several weights, one after another.
#include "kernels/cpu/cpu_tiles.h"
#include "kernels/products/bytes/byte_gemms.h"

namespace fewbit::cpu {

void byte_gemms(Exec& ex, ConstTensorView x, const RowQuant& q, std::span<const ByteProduct> products) {
  auto* product_of = q.codes == DType::i8 ? &cpu::int8_gemm : &cpu::fp8_gemm;
  for (const ByteProduct& p : products) {
    if (!p.add) {
      product_of(ex, x, q, p.w, p.bias, p.y);
      continue;
    }
    FEWBIT_ASSERT(!p.bias.data);
    const Tensor product = Tensor::host(DType::f32, p.y.shape);
    product_of(ex, x, q, p.w, {}, product);
    add_product(product, p.y);
  }
}

}  // namespace fewbit::cpu
