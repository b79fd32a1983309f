#pragma once
// The dense product by cuBLAS for other ops: gemm() (kernels/products/gemm.h) on raw device pointers, with y as some
// columns of a wider matrix.
#include "kernels/exec/exec_cuda.h"

namespace fewbit::cuda {

// y = x W^T, sums in f32, each value rounded once to y.
struct DenseProduct {
  const void* x = nullptr;                              // [rows, in] of in_dtype
  const void* w = nullptr;                              // [out, in] of in_dtype
  void* y = nullptr;                                    // [rows, out] of y_dtype, rows `y_stride` values apart
  DType in_dtype = DType::bf16, y_dtype = DType::bf16;  // f32 | bf16; y_dtype: in_dtype or f32
  int64_t rows = 0, in = 0, out = 0, y_stride = 0;
  bool add = false;  // y += instead of y =
};
void dense_product(CudaState& s, const DenseProduct& p);

// Every row of y [rows, out] becomes the bias [out], or with `add` its sum with it, in the type of y (both f32 | bf16).
void lay_bias(CudaState& s, ConstTensorView bias, TensorView y, bool add = false);

}  // namespace fewbit::cuda
