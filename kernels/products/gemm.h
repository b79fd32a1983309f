#pragma once
#include <span>

#include "kernels/exec/exec.h"
#include "src/core/mat.h"
namespace fewbit {
// y = x W^T + bias, products accumulated in f32.
//   x     [rows, in]   f32 | bf16
//   w     [out, in]    the dtype of x
//   bias  [out]        the dtype of x; data == nullptr means none. Added in f32 before the rounding to y.
//   y     [rows, out]  f32, or the dtype of x; overwritten
// Never TF32.
namespace cpu {
void gemm(Exec&, ConstTensorView x, ConstTensorView w, ConstTensorView bias, TensorView y);
}
namespace cuda {
void gemm(Exec&, ConstTensorView x, ConstTensorView w, ConstTensorView bias, TensorView y);
}
inline void gemm(Exec& ex, ConstTensorView x, ConstTensorView w, ConstTensorView bias, TensorView y) {
  pick(ex, &cpu::gemm, FEWBIT_CUDA_OP(gemm))(ex, x, w, bias, y);
}
// The same for several weights of one x: y alike in dtype. On a GPU few rows in bf16 take one launch (up to
// kGemmsAtOnce at a time) that reads the weights as they lie (kernels/products/skinny.cuh) and may begin before the
// kernel before it has ended: no work in flight may write a weight or a bias. The bits of a row do not depend on the
// other rows there.
struct GemmProduct {
  ConstTensorView w{}, bias{};
  TensorView y{};
  bool add = false;  // y += the product, rounded once; no bias then
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
// The same by cuBLAS whatever the rows: what ours are measured against (src/run/ops_bench.h).
namespace cpu {
void library_gemms(Exec&, ConstTensorView x, std::span<const GemmProduct> products);
}
namespace cuda {
void library_gemms(Exec&, ConstTensorView x, std::span<const GemmProduct> products);
}
inline void library_gemms(Exec& ex, ConstTensorView x, std::span<const GemmProduct> products) {
  pick(ex, &cpu::library_gemms, FEWBIT_CUDA_OP(library_gemms))(ex, x, products);
}

// c = alpha * op(a) op(b) + beta * c, all f32, row-major with leading dimensions; pointers on ex's device.
enum class Trans : uint8_t { no, yes };
struct MatmulArgs {
  Mat<const float> a{}, b{};
  Mat<float> c{};
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
