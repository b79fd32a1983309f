#pragma once
// Products of a normed activation: rms_norm, then gemms or byte_gemms, in as few launches as the GPU allows.
#include "kernels/products/bytes/byte_gemms.h"
#include "kernels/products/gemm.h"
namespace fewbit {
// The norm before the products: rms_norm() of kernels/model/norm.h with these arguments.
struct RowNorm {
  ConstTensorView weight{};   // [in] of the dtype of x
  float eps = 0, offset = 0;  // offset is added to the weight
};
// gemms(rms_norm(x)) and byte_gemms(rms_norm(x)): the bits, and the errors, are those of the ops one after another. Few
// rows of at most 1,024 values may differ on a GPU: the product then adds the squares in another order than the norm.
//   x       [rows, in]  f32 | bf16
//   normed  [rows, in]  the dtype of x, and not x: scratch room; its content afterwards is undefined
//   q, products         as in kernels/products/gemm.h and kernels/products/bytes/byte_gemms.h
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
