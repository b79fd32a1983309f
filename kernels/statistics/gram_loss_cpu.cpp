// The error of a coded linear under a Gram matrix: the CPU half. In f64, because a good quantizer puts its error where
// large terms cancel.
#include "kernels/statistics/gram_loss.h"

#include <algorithm>

#include "kernels/cpu/wide_product.h"

namespace fewbit::cpu {

void gram_loss(Exec& ex, ConstTensorView a, ConstTensorView b, ConstTensorView h, TensorView loss) {
  const int64_t out = a.rows(), n = a.cols();
  FEWBIT_ASSERT(a.shape == b.shape && h.rows() == n && h.cols() == n && loss.numel() == out);
  blas::use_one_thread();
  const WideCut cut = square_cut(Device::cpu, out, n);
  const Tensor delta = ex.alloc(DType::f64, {cut.rows, n}), product = ex.alloc(DType::f64, {cut.rows, n}),
               strip = ex.alloc(DType::f64, {n, cut.widest()});
  double* d = delta.as<double>();
  const auto widened = [from = h.as<float>(), n](int64_t i, int64_t j0, int64_t j1, double* to) {
    std::copy(from + i * n + j0, from + i * n + j1, to);
  };
  for (int64_t first = 0; first < out; first += cut.rows) {
    const int64_t rows = std::min(cut.rows, out - first);
    const float *of_a = a.as<float>() + first * n, *of_b = b.as<float>() + first * n;
    parallel_for(rows, 64, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin * n; i < end * n; ++i) d[i] = static_cast<double>(of_a[i]) - static_cast<double>(of_b[i]);
    });
    wide_product(d, n, rows, 64, n, cut, widened, strip.as<double>(), product.as<double>());
    parallel_for(rows, 64, [&](int64_t begin, int64_t end) {
      for (int64_t o = begin; o < end; ++o) {
        double sum = 0;
        for (int64_t i = 0; i < n; ++i) sum += d[o * n + i] * product.as<double>()[o * n + i];
        loss.as<double>()[first + o] = sum;
      }
    });
  }
}

}  // namespace fewbit::cpu
