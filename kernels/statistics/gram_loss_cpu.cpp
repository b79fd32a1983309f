// The error of a coded linear under a Gram matrix: the CPU half. In f64, because a good quantizer puts its error where
// large terms cancel.
#include "kernels/statistics/gram_loss.h"

#include <vector>

#include "kernels/cpu/blas_cpu.h"
#include "src/core/parallel.h"

namespace fewbit::cpu {

void gram_loss(Exec&, ConstTensorView a, ConstTensorView b, ConstTensorView h, TensorView loss) {
  const int64_t out = a.rows(), n = a.cols();
  FEWBIT_ASSERT(a.shape == b.shape && h.rows() == n && h.cols() == n && loss.numel() == out);
  blas::use_one_thread();
  std::vector<double> wide(static_cast<size_t>(n * n));
  parallel_for(n * n, 1 << 16, [&](int64_t begin, int64_t end) {
    for (int64_t k = begin; k < end; ++k) wide[static_cast<size_t>(k)] = h.as<float>()[k];
  });
  parallel_for(out, 64, [&](int64_t begin, int64_t end) {
    const int64_t rows = end - begin;
    std::vector<double> delta(static_cast<size_t>(rows * n)), product(delta.size());
    for (int64_t i = 0; i < rows * n; ++i)
      delta[static_cast<size_t>(i)] =
          static_cast<double>(a.as<float>()[begin * n + i]) - static_cast<double>(b.as<float>()[begin * n + i]);
    blas::gemm(CblasNoTrans, CblasNoTrans, rows, n, n, 1.0, delta.data(), n, wide.data(), n, 0.0, product.data(), n);
    for (int64_t o = 0; o < rows; ++o) {
      double sum = 0;
      for (int64_t i = 0; i < n; ++i)
        sum += delta[static_cast<size_t>(o * n + i)] * product[static_cast<size_t>(o * n + i)];
      loss.as<double>()[begin + o] = sum;
    }
  });
}

}  // namespace fewbit::cpu
