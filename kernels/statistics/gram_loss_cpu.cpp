// The error of a coded linear under a Gram matrix: the CPU half. In f64, because a good quantizer puts its error where
// large terms cancel.
#include "kernels/statistics/gram_loss.h"

#include <algorithm>

#include "kernels/cpu/blas_cpu.h"
#include "src/core/parallel.h"

namespace fewbit::cpu {
namespace {

// The loss with products in T.
template <class T>
class Loss {
 public:
  Loss(Exec& ex, ConstTensorView a, ConstTensorView b, ConstTensorView h)
      : a_(a.as<float>()),
        b_(b.as<float>()),
        h_(h.as<float>()),
        out_(a.rows()),
        cut_(square_cut(Device::cpu, out_, a.cols())),
        delta_(ex.alloc(kType, {cut_.rows, cut_.n})),
        product_(ex.alloc(kType, {cut_.rows, cut_.n})),
        strip_(ex.alloc(kType, {cut_.n, cut_.widest()})) {}

  void run(double* loss) const {
    const int64_t n = cut_.n;
    T* d = delta_.template as<T>();
    for (int64_t first = 0; first < out_; first += cut_.rows) {
      const int64_t rows = std::min(cut_.rows, out_ - first);
      const float *of_a = a_ + first * n, *of_b = b_ + first * n;
      parallel_for(rows, 64, [&](int64_t begin, int64_t end) {
        for (int64_t i = begin * n; i < end * n; ++i) d[i] = static_cast<T>(of_a[i]) - static_cast<T>(of_b[i]);
      });
      for (int64_t s = 0; s < cut_.strips(); ++s) multiply(rows, s);
      parallel_for(rows, 64, [&](int64_t begin, int64_t end) {
        for (int64_t o = begin; o < end; ++o) loss[first + o] = dot(o);
      });
    }
  }

 private:
  static constexpr DType kType = std::is_same_v<T, double> ? DType::f64 : DType::f32;

  // Columns of a strip of delta [rows, n] U, where U is the upper half of h, its entries above the strip twice.
  void multiply(int64_t rows, int64_t s) const {
    const int64_t n = cut_.n, begin = cut_.begin(s), end = cut_.end(s), width = end - begin;
    T* strip = strip_.template as<T>();
    parallel_for(end, 16, [&](int64_t i0, int64_t i1) {
      for (int64_t i = i0; i < i1; ++i)
        for (int64_t j = begin; j < end; ++j)
          strip[i * width + j - begin] = static_cast<T>(i < begin ? 2 : 1) * static_cast<T>(h_[i * n + j]);
    });
    parallel_for(rows, 64, [&](int64_t r0, int64_t r1) {
      blas::gemm(CblasNoTrans, CblasNoTrans, r1 - r0, width, end, static_cast<T>(1), delta_.template as<T>() + r0 * n,
                 n, strip, width, static_cast<T>(0), product_.template as<T>() + r0 * n + begin, n);
    });
  }

  double dot(int64_t row) const {
    const T *d = delta_.template as<T>() + row * cut_.n, *p = product_.template as<T>() + row * cut_.n;
    double sum = 0;
    for (int64_t i = 0; i < cut_.n; ++i) sum += static_cast<double>(d[i]) * static_cast<double>(p[i]);
    return sum;
  }

  const float *a_, *b_, *h_;
  int64_t out_;
  WideCut cut_;
  Tensor delta_, product_, strip_;
};

}  // namespace

void gram_loss(Exec& ex, ConstTensorView a, ConstTensorView b, ConstTensorView h, TensorView loss, LossSums sums) {
  const int64_t out = a.rows(), n = a.cols();
  FEWBIT_ASSERT(a.shape == b.shape && h.rows() == n && h.cols() == n && loss.numel() == out);
  if (out == 0) return;
  blas::use_one_thread();
  sums == LossSums::f32 ? Loss<float>(ex, a, b, h).run(loss.as<double>())
                        : Loss<double>(ex, a, b, h).run(loss.as<double>());
}

}  // namespace fewbit::cpu
