#pragma once
// The dense product inside other ops: gemm() on raw pointers, with y as a run of columns of a wider matrix.
#include "kernels/exec/exec_cuda.h"

namespace fewbit::cuda {

struct DenseProduct {
  const void* x = nullptr;  // [rows, in]
  const void* w = nullptr;  // [out, in]
  void* y = nullptr;        // [rows, out], rows `y_stride` values apart
  DType in_dtype = DType::bf16, y_dtype = DType::bf16;
  int64_t rows = 0, in = 0, out = 0, y_stride = 0;
  bool add = false;  // y += instead of y =
};
void dense_product(CudaState& s, const DenseProduct& p);

// Every row of y [rows, out] becomes the bias [out].
void lay_bias(CudaState& s, ConstTensorView bias, TensorView y);

}  // namespace fewbit::cuda
