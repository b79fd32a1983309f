#pragma once
// row_product(): a library's product in which a row has the same bits however many rows there are. cuBLAS chooses a
// kernel by the number of rows, and sums over the inner dimension in that kernel's order. Here the choice is made for
// kRowsOfChoice rows, whatever is asked for, without a division of the inner dimension: every entry is summed as a
// whole in the order of the chosen kernel. Processes that share the rows of a linear have the bits of one that has all
// of them then (src/quant/row_share.h).
#include <span>

#include "kernels/exec/exec_cuda.h"

namespace fewbit::cuda {

// Half of the 4,096 outputs of a common linear: a kernel that fills the device with those loses little with more.
inline constexpr int64_t kRowsOfChoice = 2048;

// c [rows, cols] = alpha sum_i a_i [rows, inner] b_i [inner, cols] + beta c, row-major, rows `ld` apart.
struct RowProduct {
  cudaDataType_t type = CUDA_R_32F;  // of a and b: f64 with sums in f64, f32 (never TF32) and bf16 with sums in f32
  int64_t rows = 0, inner = 0, cols = 0;
  int64_t a_ld = 0, b_ld = 0;
  void* c = nullptr;  // f64 of f64, else f32
  int64_t c_ld = 0;
  double alpha = 1, beta = 0;
  bool transposed = false;  // b is stored as [cols, inner]
};
struct RowFactors {
  const void *a = nullptr, *b = nullptr;
};
// The products are added one after the other. Bits depend on a row's values, on all of `b`, on what the product is but
// for its rows, and on where columns begin within 256 bytes.
void row_product(CudaState&, const RowProduct&, std::span<const RowFactors>);

}  // namespace fewbit::cuda
