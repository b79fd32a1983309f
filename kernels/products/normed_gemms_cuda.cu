// Few rows by the kernel of skinny.cuh, which norms them itself; many rows of codes are normed by the kernel that makes
// the codes (prepare_rows.cuh); all others by a norm, then the products.
#include "kernels/products/normed_gemms.h"

#include "kernels/model/norm.h"
#include "kernels/products/bytes/byte_product.cuh"
#include "kernels/products/skinny_job.cuh"

namespace fewbit::cuda {

void normed_gemms(Exec& ex, ConstTensorView x, const RowNorm& norm, TensorView normed,
                  std::span<const GemmProduct> products) {
  if (x.rows() == 0 || products.empty()) return;
  if (skinny::try_gemms(ex.cuda_state(), x, &norm, products, true)) return;
  cuda::rms_norm(ex, x, norm.weight, norm.eps, norm.offset, normed);
  cuda::gemms(ex, normed, products);
}

void normed_byte_gemms(Exec& ex, ConstTensorView x, const RowNorm& norm, TensorView normed, const RowQuant& q,
                       std::span<const ByteProduct> products) {
  if (x.rows() == 0 || products.empty()) return;
  CudaState& s = ex.cuda_state();
  if (skinny::try_byte_gemms(s, x, &norm, q, products, true)) return;
  if (byte_product::try_prepared_gemms(s, {.x = x, .norm = &norm}, q, products)) return;
  cuda::rms_norm(ex, x, norm.weight, norm.eps, norm.offset, normed);
  cuda::byte_gemms(ex, normed, q, products);
}

}  // namespace fewbit::cuda
