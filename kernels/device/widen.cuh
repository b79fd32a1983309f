#pragma once
// wide_product(): a product in f64 with a matrix that is widened strip by strip, for sums whose terms cancel.
#include "kernels/device/vec.cuh"
#include "kernels/exec/exec_cuda.h"
#include "src/core/wide_cut.h"

namespace fewbit::cuda {

// strip [gridDim.x, end - begin] = columns [begin, end) of from - less, both [gridDim.x, n]; less may be null. A block
// per row.
static __global__ void widen_strip_kernel(const float* __restrict__ from, const float* __restrict__ less,
                                          double* __restrict__ strip, int64_t n, int64_t begin, int64_t end) {
  const int64_t row = blockIdx.x;
  for (int64_t j = begin + threadIdx.x; j < end; j += blockDim.x) {
    const double v = from[row * n + j];
    strip[row * (end - begin) + j - begin] = less ? v - static_cast<double>(less[row * n + j]) : v;
  }
}

// The matrix of wide_product: from - less, both [n, n]; less may be null.
struct WideMatrix {
  const float *from = nullptr, *less = nullptr;
};

// x [rows, n] = a [rows, n] M [n, n] in f64. strip: room for n * cut.widest() values.
static void wide_product(Exec& ex, const double* a, int64_t rows, const WideCut& cut, const WideMatrix& m,
                         double* strip, double* x) {
  CudaState& s = ex.cuda_state();
  const int64_t n = cut.n;
  const double one = 1, zero = 0;
  for (int64_t i = 0; i < cut.strips(); ++i) {
    const int64_t begin = cut.begin(i), end = cut.end(i), width = end - begin;
    widen_strip_kernel<<<static_cast<unsigned>(n), 256, 0, s.stream>>>(m.from, m.less, strip, n, begin, end);
    FEWBIT_CUDA_LAUNCHED();
    // Row-major X = A M is X^T = M^T A^T column-major.
    FEWBIT_CUBLAS_CALL(cublasDgemm_64(s.blas, CUBLAS_OP_N, CUBLAS_OP_N, width, rows, n, &one, strip, width, a, n, &zero,
                                      x + begin, n));
  }
}

}  // namespace fewbit::cuda
