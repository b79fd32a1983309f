#pragma once
#include "kernels/products/bytes/int8_gemm.h"
namespace fewbit {
// y = Q(x) W^T + bias, both in E4M3 with f32 sums:
//   y[r, o] = (sum_i x_code w_code) * x_scale[r] * scale[o] + bias[o]   in f32, rounded once.
//   x, bias, y as in kernels/products/bytes/int8_gemm.h · q with codes f8_e4m3 and no groups · w.codes f8_e4m3
// CUDA: up to 16 rows by a kernel of our own; more by cuBLASLt on FP8 tensor cores (compute capability 8.9 and up, in
// and out multiples of 16), whose sums are a little less than f32 (tests/support/tolerance.h), and which on 9.0 scales
// 256 rows and more itself; else the codes are widened to bf16, which is exact, and multiplied densely. CPU: code times
// scale in f32, multiplied densely. With q kUnrounded (weight-only FP8) x stays as it is; on CUDA rows in bf16 that are
// not streamed (kernels/products/bytes/byte_gemms.h) become two digits of E4M3 each, exact down to 2^-21 of a row's
// largest value, for FP8 tensor cores and the library's shapes; else the weight is code * scale in the type of x, in a
// dense product.
namespace cpu {
void fp8_gemm(Exec&, ConstTensorView x, const RowQuant& q, const ByteWeightView& w, ConstTensorView bias, TensorView y);
}
namespace cuda {
void fp8_gemm(Exec&, ConstTensorView x, const RowQuant& q, const ByteWeightView& w, ConstTensorView bias, TensorView y);
}
inline void fp8_gemm(Exec& ex, ConstTensorView x, const RowQuant& q, const ByteWeightView& w, ConstTensorView bias,
                     TensorView y) {
  pick(ex, &cpu::fp8_gemm, FEWBIT_CUDA_OP(fp8_gemm))(ex, x, q, w, bias, y);
}
// Whether this device multiplies FP8 itself (for the notes of a run).
bool has_fp8_products(const Exec& ex);
}  // namespace fewbit
