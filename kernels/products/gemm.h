#pragma once
// Dense products: y = x W^T for one weight or several, and the general f32 matrix product.
#include <span>

#include "kernels/exec/exec.h"
#include "src/core/mat.h"
namespace fewbit {
// y = x W^T + bias.
//   x     [rows, in]   f32 | bf16
//   w     [out, in]    the dtype of x
//   bias  [out]        the dtype of x; data == nullptr: none
//   y     [rows, out]  f32, or the dtype of x; overwritten
// Numerics: products and sums in f32, in TF32 under RoughProducts alone (two bf16 values' products are exact in f32);
// the bias is added in f32, then y is rounded once, to nearest even. A shape and a device fix the order of the sums.
// Errors: shapes or dtypes other than these stop the process (FEWBIT_ASSERT), here and in all ops of this header. No
// rows and no outputs are fine: nothing is written.
namespace cpu {
void gemm(Exec&, ConstTensorView x, ConstTensorView w, ConstTensorView bias, TensorView y);
}
namespace cuda {
void gemm(Exec&, ConstTensorView x, ConstTensorView w, ConstTensorView bias, TensorView y);
}
inline void gemm(Exec& ex, ConstTensorView x, ConstTensorView w, ConstTensorView bias, TensorView y) {
  pick(ex, &cpu::gemm, FEWBIT_CUDA_OP(gemm))(ex, x, w, bias, y);
}
// The same for several weights of one x, whose y have one dtype. On a GPU one or two rows in bf16 take one launch for
// up to kGemmsAtOnce weights (kernels/products/skinny.cuh), where the bits of a row do not depend on the other row.
// That launch may read weights before the kernel before it in the stream has ended: no work in flight may write a
// weight.
struct GemmProduct {
  ConstTensorView w{}, bias{};  // as in gemm()
  TensorView y{};
  // y += the product and its bias, added in f32 and rounded once; by cuBLAS y and the bias are rounded together first.
  bool add = false;
};
inline constexpr int kGemmsAtOnce = 3;
namespace cpu {
void gemms(Exec&, ConstTensorView x, std::span<const GemmProduct> products);
}
namespace cuda {
void gemms(Exec&, ConstTensorView x, std::span<const GemmProduct> products);
}
inline void gemms(Exec& ex, ConstTensorView x, std::span<const GemmProduct> products) {
  pick(ex, &cpu::gemms, FEWBIT_CUDA_OP(gemms))(ex, x, products);
}
// The same by cuBLAS for any number of rows: what the kernels here are measured against (src/run/bench/ops_bench.h). On
// the CPU it is gemms().
namespace cpu {
void library_gemms(Exec&, ConstTensorView x, std::span<const GemmProduct> products);
}
namespace cuda {
void library_gemms(Exec&, ConstTensorView x, std::span<const GemmProduct> products);
}
inline void library_gemms(Exec& ex, ConstTensorView x, std::span<const GemmProduct> products) {
  pick(ex, &cpu::library_gemms, FEWBIT_CUDA_OP(library_gemms))(ex, x, products);
}

// c = alpha * op(a) op(b) + beta * c, all f32 with f32 sums (never TF32), row-major with leading dimensions; op(m) is m
// or its transpose. Pointers on ex's device; c must not overlap a or b.
enum class Trans : uint8_t { no, yes };
struct MatmulArgs {
  Mat<const float> a{}, b{};  // [m, k] and [k, n] after ta and tb
  Mat<float> c{};             // [m, n]
  Trans ta = Trans::no, tb = Trans::no;
  float alpha = 1, beta = 0;
};
namespace cpu {
void matmul(Exec&, const MatmulArgs&);
}
namespace cuda {
void matmul(Exec&, const MatmulArgs&);
}
inline void matmul(Exec& ex, const MatmulArgs& args) { pick(ex, &cpu::matmul, FEWBIT_CUDA_OP(matmul))(ex, args); }
}  // namespace fewbit
