#pragma once
#include "kernels/exec.h"
#include "src/core/mat.h"
namespace fewbit {
// y = x W^T + bias, products accumulated in f32.
//   x     [rows, in]   f32 | bf16
//   w     [out, in]    the dtype of x
//   bias  [out]        the dtype of x; data == nullptr means none. Added in f32 before the rounding to y.
//   y     [rows, out]  f32, or the dtype of x; overwritten
// Never TF32.
namespace cpu  { void gemm(Exec&, ConstTensorView x, ConstTensorView w, ConstTensorView bias, TensorView y); }
namespace cuda { void gemm(Exec&, ConstTensorView x, ConstTensorView w, ConstTensorView bias, TensorView y); }
inline void gemm(Exec& ex, ConstTensorView x, ConstTensorView w, ConstTensorView bias, TensorView y) {
  pick(ex, &cpu::gemm, FEWBIT_CUDA_OP(gemm))(ex, x, w, bias, y);
}

// c = alpha * op(a) op(b) + beta * c, all f32, row-major with leading dimensions; pointers on ex's device.
enum class Trans : uint8_t { no, yes };
struct MatmulArgs {
  Mat<const float> a{}, b{};
  Mat<float> c{};
  Trans ta = Trans::no, tb = Trans::no;
  float alpha = 1, beta = 0;
};
namespace cpu  { void matmul(Exec&, const MatmulArgs&); }
namespace cuda { void matmul(Exec&, const MatmulArgs&); }
inline void matmul(Exec& ex, const MatmulArgs& args) { pick(ex, &cpu::matmul, FEWBIT_CUDA_OP(matmul))(ex, args); }
}  // namespace fewbit
