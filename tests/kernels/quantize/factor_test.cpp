#include "kernels/quantize/factor.h"

#include "tests/kernels/quantize/quantizer_fixture.h"
#include "tests/support/devices.h"

namespace fewbit {
namespace {

using namespace test;

FEWBIT_DEVICE_TEST(Factor, IsTheInverseOfThePublishedFactor) {
  for (const Precision precision : {Precision::f32, Precision::f64})
    for (const int64_t n : {1, 31, 130, 300}) {
      const Tensor h = correlated_gram(n, 2 * n + 40, 5);
      const float lambda = 0.01f * mean_diagonal(h);
      const Tensor dh = ex.to_device(h), dr = poisoned(ex, DType::f32, {n, n});
      ASSERT_TRUE(factorize(ex, dh, lambda, precision, dr).ok()) << n;
      const Tensor r = ex.to_host(dr);
      // U = chol(H^-1), upper; U R = I.
      const Matrix u = cholesky_upper(inverse(damped(h, lambda), n), n);
      double worst = 0;
      for (int64_t i = 0; i < n; ++i)
        for (int64_t j = 0; j < n; ++j) {
          if (j < i) {
            ASSERT_EQ(r.as<float>()[i * n + j], 0.f);
          }
          double sum = i == j ? -1 : 0;
          for (int64_t k = i; k <= j; ++k) sum += u[static_cast<size_t>(i * n + k)] * r.as<float>()[k * n + j];
          worst = std::max(worst, std::fabs(sum));
        }
      EXPECT_LT(worst, tol::kFactor) << n;
      EXPECT_EQ(first_difference(ex.to_host(dh), h), "");  // the input stays
    }
}

FEWBIT_DEVICE_TEST(Factor, FailureIsAStatus) {
  for (const Precision precision : {Precision::f32, Precision::f64}) {
    const int64_t n = 300;
    Tensor h = Tensor::host_zeros(DType::f32, {n, n});
    for (int64_t i = 0; i < n; ++i) h.as<float>()[i * n + i] = 2;
    const Tensor r = ex.alloc(DType::f32, {n, n});
    EXPECT_EQ(factorize(ex, ex.to_device(h), 0, precision, r).pivot, 0);
    h.as<float>()[9 * n + 9] = -3;  // position 290 of the reversed matrix, order 291
    EXPECT_EQ(factorize(ex, ex.to_device(h), 0, precision, r).pivot, n - 9);
    EXPECT_EQ(factorize(ex, ex.to_device(h), 4, precision, r).pivot, 0);
    h.as<float>()[9 * n + 12] = std::numeric_limits<float>::quiet_NaN();
    EXPECT_EQ(factorize(ex, ex.to_device(h), 4, precision, r).pivot, 1);
  }
}

// How far (t - w) (gram + lambda) is from share times w (cross - gram) + more, relative to the latter.
double shift_error(const Tensor& t, const Tensor& w, const Tensor& cross, const Tensor& gram, float lambda,
                   const Tensor& more, double share) {
  const int64_t out = w.rows(), n = w.cols();
  const Matrix hd = damped(gram, lambda);
  double diff = 0, norm = 0;
  for (int64_t o = 0; o < out; ++o)
    for (int64_t j = 0; j < n; ++j) {
      double left = 0, right = more ? share * more.as<float>()[o * n + j] : 0;
      for (int64_t i = 0; i < n; ++i) {
        left += (static_cast<double>(t.as<float>()[o * n + i]) - w.as<float>()[o * n + i]) *
                hd[static_cast<size_t>(i * n + j)];
        right += share * w.as<float>()[o * n + i] *
                 (static_cast<double>(cross.as<float>()[i * n + j]) - gram.as<float>()[i * n + j]);
      }
      diff += (left - right) * (left - right);
      norm += right * right;
    }
  return std::sqrt(diff / norm);
}

FEWBIT_DEVICE_TEST(ShiftTargets, SolvesTheRegressionOfTheUnquantizedOutput) {
  const double bound = ex.on_cuda() ? tol::kShiftResidualOfTerms : tol::kShiftResidual;
  for (const auto& [out, n] : {std::pair<int64_t, int64_t>{70, 150}, {9, kSolveCols + 76}}) {
    Tensor gram = correlated_gram(n, 400, 7), cross = correlated_gram(n, 400, 8);
    const Tensor w = random_normal(DType::f32, {out, n}, 9, 0.1f), more = random_normal(DType::f32, {out, n}, 10, 50);
    for (int64_t i = 0; i < n; ++i)  // input 3 was never seen in the quantized stream
      gram.as<float>()[3 * n + i] = gram.as<float>()[i * n + 3] = cross.as<float>()[i * n + 3] = 0;
    for (int64_t o = 0; o < out; ++o) more.as<float>()[o * n + 3] = 0;
    const float lambda = 0.01f * mean_diagonal(gram);
    const Tensor target = poisoned(ex, DType::f32, {out, n}), by_matrix = poisoned(ex, DType::f32, {out, n}),
                 m = poisoned(ex, DType::f32, {n, n});
    const Tensor dw = ex.to_device(w), dc = ex.to_device(cross), dg = ex.to_device(gram);
    ASSERT_TRUE(shift_targets(ex, dw, dc, dg, lambda, {}, 1, target).ok());
    const Tensor t = ex.to_host(target);
    ASSERT_TRUE(shift_matrix(ex, dc, dg, lambda, 1, m).ok());
    apply_shift(ex, dw, m, by_matrix);
    EXPECT_LT(relative_error(ex.to_host(by_matrix), t), tol::kF32Product);
    EXPECT_LT(shift_error(t, w, cross, gram, lambda, {}, 1), bound);
    ASSERT_TRUE(shift_targets(ex, dw, dc, dg, lambda, ex.to_device(more), 0.5f, target).ok());
    const Tensor further = ex.to_host(target);
    EXPECT_GT(relative_error(further, t), tol::kF32Product);
    EXPECT_LT(shift_error(further, w, cross, gram, lambda, more, 0.5), bound);
    for (int64_t o = 0; o < out; ++o)
      for (const Tensor* x : {&t, &further}) EXPECT_EQ(x->as<float>()[o * n + 3], w.as<float>()[o * n + 3]);
  }
}

FEWBIT_DEVICE_TEST(ShiftTargets, EqualStreamsShiftNothing) {
  const Tensor gram = ex.to_device(correlated_gram(64, 200, 3)),
               w = ex.to_device(random_normal(DType::f32, {5, 64}, 4));
  const Tensor target = poisoned(ex, DType::f32, {5, 64});
  ASSERT_TRUE(shift_targets(ex, w, gram, gram, 1.f, {}, 1, target).ok());
  EXPECT_EQ(first_difference(ex.to_host(target), ex.to_host(w)), "");
}

}  // namespace
}  // namespace fewbit
