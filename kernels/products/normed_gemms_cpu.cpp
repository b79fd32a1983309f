// The norm, then the products.
#include "kernels/products/normed_gemms.h"

#include "kernels/model/norm.h"

namespace fewbit::cpu {

void normed_gemms(Exec& ex, ConstTensorView x, const RowNorm& norm, TensorView normed,
                  std::span<const GemmProduct> products) {
  cpu::rms_norm(ex, x, norm.weight, norm.eps, norm.offset, normed);
  cpu::gemms(ex, normed, products);
}

void normed_byte_gemms(Exec& ex, ConstTensorView x, const RowNorm& norm, TensorView normed, const RowQuant& q,
                       std::span<const ByteProduct> products) {
  cpu::rms_norm(ex, x, norm.weight, norm.eps, norm.offset, normed);
  cpu::byte_gemms(ex, normed, q, products);
}

}  // namespace fewbit::cpu
