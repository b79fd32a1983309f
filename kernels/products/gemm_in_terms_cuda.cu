// x is split once, w a panel of rows at a time; the kernels that cuBLAS chooses, and the bits, depend on the shape
// alone.
#include "kernels/device/split_product.cuh"
#include "kernels/exec/exec_cuda.h"
#include "kernels/products/gemm_in_terms.h"

namespace fewbit::cuda {

void gemm_in_terms(Exec& ex, ConstTensorView x, ConstTensorView w, TensorView y) {
  const int64_t rows = x.rows(), out = w.rows(), in = x.cols();
  FEWBIT_ASSERT(w.cols() == in && y.rows() == rows && y.cols() == out);
  FEWBIT_ASSERT(x.dtype == DType::f32 && w.dtype == DType::f32 && y.dtype == DType::f32);
  if (rows == 0 || out == 0) return;
  CudaState& s = ex.cuda_state();
  const int64_t panel = std::min(out, kTermRows);
  const SplitMatrix of_x(ex, rows, in), of_w(ex, panel, in);
  split(s, x.as<float>(), in, rows, in, of_x.terms());
  for (int64_t first = 0; first < out; first += panel) {
    const int64_t n = std::min(panel, out - first);
    split(s, w.as<float>() + first * in, in, n, in, of_w.terms());
    split_product(s, of_x.terms(), of_w.terms(), rows, in, n, y.as<float>() + first, out, {.transposed = true});
  }
}

}  // namespace fewbit::cuda
