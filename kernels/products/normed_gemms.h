#pragma once
#include "kernels/products/bytes/byte_gemms.h"
#include "kernels/products/gemm.h"
namespace fewbit {
// Products of rms_norm(x) (kernels/model/norm.h): on a GPU few rows are normed by the product itself. The bits are
// those of rms_norm, then gemms or byte_gemms.
struct RowNorm {
  ConstTensorView weight{};  // [in] of the dtype of x
  float eps = 0, offset = 0;
};
//   normed [rows, in] like x, not x: room for the normed x; what it holds afterwards is not said. The rest as in
//   kernels/products/gemm.h and kernels/products/bytes/byte_gemms.h.
namespace cpu {
void normed_gemms(Exec&, ConstTensorView x, const RowNorm&, TensorView normed, std::span<const GemmProduct> products);
}
namespace cuda {
void normed_gemms(Exec&, ConstTensorView x, const RowNorm&, TensorView normed, std::span<const GemmProduct> products);
}
inline void normed_gemms(Exec& ex, ConstTensorView x, const RowNorm& norm, TensorView normed,
                         std::span<const GemmProduct> products) {
  pick(ex, &cpu::normed_gemms, FEWBIT_CUDA_OP(normed_gemms))(ex, x, norm, normed, products);
}
namespace cpu {
void normed_byte_gemms(Exec&, ConstTensorView x, const RowNorm&, TensorView normed, const RowQuant& q,
                       std::span<const ByteProduct> products);
}
namespace cuda {
void normed_byte_gemms(Exec&, ConstTensorView x, const RowNorm&, TensorView normed, const RowQuant& q,
                       std::span<const ByteProduct> products);
}
inline void normed_byte_gemms(Exec& ex, ConstTensorView x, const RowNorm& norm, TensorView normed, const RowQuant& q,
                              std::span<const ByteProduct> products) {
  pick(ex, &cpu::normed_byte_gemms, FEWBIT_CUDA_OP(normed_byte_gemms))(ex, x, norm, normed, q, products);
}
}  // namespace fewbit
