// The error of a coded linear under a Gram matrix: the CPU half. In f64, because a good quantizer puts its error where
// large terms cancel.
#include "kernels/statistics/gram_loss.h"

#include <algorithm>

#include "kernels/cpu/blas_cpu.h"
#include "src/core/parallel.h"

namespace fewbit::cpu {
namespace {

// Columns of a strip of x [rows, n] = d [rows, n] U, where U is the upper half of h, its entries above the strip twice.
void upper_product(const double* d, int64_t rows, const float* h, const WideCut& cut, int64_t s, double* strip,
                   double* x) {
  const int64_t n = cut.n, begin = cut.begin(s), end = cut.end(s), width = end - begin;
  parallel_for(end, 16, [&](int64_t i0, int64_t i1) {
    for (int64_t i = i0; i < i1; ++i)
      for (int64_t j = begin; j < end; ++j) strip[i * width + j - begin] = (i < begin ? 2.0 : 1.0) * h[i * n + j];
  });
  parallel_for(rows, 64, [&](int64_t r0, int64_t r1) {
    blas::gemm(CblasNoTrans, CblasNoTrans, r1 - r0, width, end, 1.0, d + r0 * n, n, strip, width, 0.0,
               x + r0 * n + begin, n);
  });
}

}  // namespace

void gram_loss(Exec& ex, ConstTensorView a, ConstTensorView b, ConstTensorView h, TensorView loss) {
  const int64_t out = a.rows(), n = a.cols();
  FEWBIT_ASSERT(a.shape == b.shape && h.rows() == n && h.cols() == n && loss.numel() == out);
  blas::use_one_thread();
  const WideCut cut = square_cut(Device::cpu, out, n);
  const Tensor delta = ex.alloc(DType::f64, {cut.rows, n}), product = ex.alloc(DType::f64, {cut.rows, n}),
               strip = ex.alloc(DType::f64, {n, cut.widest()});
  double* d = delta.as<double>();
  for (int64_t first = 0; first < out; first += cut.rows) {
    const int64_t rows = std::min(cut.rows, out - first);
    const float *of_a = a.as<float>() + first * n, *of_b = b.as<float>() + first * n;
    parallel_for(rows, 64, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin * n; i < end * n; ++i) d[i] = static_cast<double>(of_a[i]) - static_cast<double>(of_b[i]);
    });
    for (int64_t s = 0; s < cut.strips(); ++s)
      upper_product(d, rows, h.as<float>(), cut, s, strip.as<double>(), product.as<double>());
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
