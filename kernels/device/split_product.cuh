#pragma once
// split_product(): a product of f32 matrices on the tensor cores. Each factor is split into two bf16 terms, x = high +
// low, and three products of terms are summed in f32: high high + high low + low high. What that leaves out is some
// 2^-16 of the factors' magnitudes, where TF32 would leave out 2^-11; it takes a quarter of the time of an f32 product.
// A row has the same bits however many rows there are (kernels/device/row_product.cuh).
#include <cuda_bf16.h>

#include "kernels/device/row_product.cuh"
#include "kernels/device/vec.cuh"
#include "kernels/exec/exec_cuda.h"

namespace fewbit::cuda {

// The two terms of a matrix, row-major, rows `ld` apart.
struct SplitTerms {
  __nv_bfloat16 *high = nullptr, *low = nullptr;
  int64_t ld = 0;

  SplitTerms at(int64_t row, int64_t col) const { return {high + row * ld + col, low + row * ld + col, ld}; }
};

// Room for the terms of a matrix [rows, cols].
class SplitMatrix {
 public:
  SplitMatrix(Exec& ex, int64_t rows, int64_t cols)
      // The low terms begin where those of any number of rows may: products look at it.
      : room_(ex.alloc(DType::bf16, {2, (rows * cols + kAligned - 1) / kAligned * kAligned})), cols_(cols) {}
  SplitTerms terms() const {
    __nv_bfloat16* high = room_.as<__nv_bfloat16>();
    return {high, high + room_.cols(), cols_};
  }

 private:
  static constexpr int64_t kAligned = 128;  // values of 256 bytes
  Tensor room_;
  int64_t cols_;
};

static __device__ __forceinline__ void split_value(float v, __nv_bfloat16& high, __nv_bfloat16& low) {
  high = __float2bfloat16_rn(v);
  low = __float2bfloat16_rn(v - __bfloat162float(high));
}

// to [gridDim.x, cols] = the terms of from [gridDim.x, cols], whose rows lie ld apart. A block per row.
static __global__ void split_kernel(const float* __restrict__ from, int64_t ld, SplitTerms to, int64_t cols) {
  const int64_t row = blockIdx.x;
  for (int64_t j = threadIdx.x; j < cols; j += blockDim.x)
    split_value(from[row * ld + j], to.high[row * to.ld + j], to.low[row * to.ld + j]);
}

static void split(CudaState& s, const float* from, int64_t ld, int64_t rows, int64_t cols, const SplitTerms& to) {
  if (rows == 0 || cols == 0) return;
  split_kernel<<<static_cast<unsigned>(rows), 256, 0, s.stream>>>(from, ld, to, cols);
  FEWBIT_CUDA_LAUNCHED();
}

// delta [out, in] = the terms of target - value of integer codes (CodedArrays of kernels/grids/coded_view.h); a block
// per row.
template <class Codes>
__global__ void delta_terms_kernel(const float* __restrict__ target, const Codes q, SplitTerms delta) {
  const int64_t row = blockIdx.x;
  for (int i = threadIdx.x; i < q.in; i += blockDim.x) {
    const int g = q.group_at(i);
    const float level = static_cast<float>(q.code(row, i) - q.zero(row, g));
    const int64_t at = row * delta.ld + i;
    split_value(target[q.index(row, i)] - level * q.scale(row, g), delta.high[at], delta.low[at]);
  }
}

struct SplitScale {
  float alpha = 1, beta = 0;
  bool transposed = false;  // b is stored as [n, k]
};

// c [m, n] = alpha a [m, k] b [k, n] + beta c by the terms of both; the rows of c lie ldc apart.
static void split_product(CudaState& s, const SplitTerms& a, const SplitTerms& b, int64_t m, int64_t k, int64_t n,
                          float* c, int64_t ldc, const SplitScale& scale = {}) {
  // The small products come first, so that the sum starts small.
  const RowFactors products[] = {{a.low, b.high}, {a.high, b.low}, {a.high, b.high}};
  row_product(s,
              {.type = CUDA_R_16BF,
               .rows = m,
               .inner = k,
               .cols = n,
               .a_ld = a.ld,
               .b_ld = b.ld,
               .c = c,
               .c_ld = ldc,
               .alpha = scale.alpha,
               .beta = scale.beta,
               .transposed = scale.transposed},
              products);
}

}  // namespace fewbit::cuda
