#pragma once
// gemm_in_terms: a product of f32 matrices whose last bits nobody asks for.
#include <algorithm>

#include "kernels/exec/exec.h"
namespace fewbit {
// y = x W^T, as gemm() (gemm.h) without a bias, of f32 matrices x [rows, in], w [out, in] and y [rows, out], for a
// number that is reported and decides nothing: on CUDA the products are those of two bf16 terms each
// (kernels/device/split_product.cuh), 2^-16 of the factors' magnitudes apart from f32 ones, in a quarter of the time.
namespace cpu {
void gemm_in_terms(Exec&, ConstTensorView x, ConstTensorView w, TensorView y);
}
namespace cuda {
void gemm_in_terms(Exec&, ConstTensorView x, ConstTensorView w, TensorView y);
}
inline void gemm_in_terms(Exec& ex, ConstTensorView x, ConstTensorView w, TensorView y) {
  pick(ex, &cpu::gemm_in_terms, FEWBIT_CUDA_OP(gemm_in_terms))(ex, x, w, y);
}
// Rows of w that it splits at a time, and its bytes at the peak besides the arguments.
inline constexpr int64_t kTermRows = 2048;
inline int64_t gemm_in_terms_bytes(Device::Kind kind, int64_t rows, int64_t out, int64_t in) {
  return kind == Device::cpu ? 0 : 4 * in * (rows + std::min(out, kTermRows));
}
}  // namespace fewbit
