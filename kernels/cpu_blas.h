#pragma once
// The one door to OpenBLAS: single-threaded products of row-major f32 blocks, called from inside our own
// parallel loops, so that results do not depend on the number of threads.
#include <cstdint>
#include <functional>

#include "src/core/tensor.h"

namespace fewbit::cpu {

struct BlasMat {
  const float* data = nullptr;
  int64_t ld = 0;
  bool transposed = false;
};
// c [rows, cols] = alpha * op(a) [rows, inner] * op(b) [inner, cols] + beta * c, on the calling thread alone.
void sgemm(BlasMat a, BlasMat b, float* c, int64_t ldc, int64_t rows, int64_t cols, int64_t inner,
           float alpha = 1, float beta = 0);

// Makes rows [begin, end) of a weight as f32 [end - begin, in], called on the thread that will use them.
using WeightRows = std::function<void(int64_t begin, int64_t end, float* out)>;
// y = x W^T + bias for many rows of x: fixed tiles of (rows of x) x (rows of W), widened to f32 and
// multiplied, in parallel. x [rows, in] f32 | bf16; bias [out] dtype of x or null; y [rows, out] f32 | bf16.
void tiled_product(ConstTensorView x, int64_t out, const WeightRows& weight, ConstTensorView bias,
                   TensorView y);
// Row of sums to row of y: adds the bias (widened) and rounds once.
void store_row(const float* sums, ConstTensorView bias, int64_t begin, int64_t end, TensorView y,
               int64_t row);

}  // namespace fewbit::cpu
