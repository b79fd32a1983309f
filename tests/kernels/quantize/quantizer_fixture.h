#pragma once
// What the tests of the quantizer's ops share: correlated Gram matrices, f64 arithmetic, tensors on a back end.
#include <cmath>
#include <functional>
#include <vector>

#include "kernels/products/dequantize.h"
#include "src/core/quantized_linear.h"
#include "src/core/rng.h"
#include "tests/support/support.h"
#include "tests/support/tolerance.h"

namespace fewbit::test {

using Matrix = std::vector<double>;  // row-major

// Sum over `tokens` of x x^T, [n, n] f32, for inputs that share a few directions and differ in size by column.
inline Tensor correlated_gram(int64_t n, int64_t tokens, uint64_t seed) {
  const int64_t factors = 8;
  const Tensor mix = random_normal(DType::f32, {factors, n}, seed + 1),
               own = random_normal(DType::f32, {tokens, n}, seed),
               common = random_normal(DType::f32, {tokens, factors}, seed + 2);
  Matrix x(static_cast<size_t>(tokens * n));
  for (int64_t t = 0; t < tokens; ++t)
    for (int64_t i = 0; i < n; ++i) {
      double v = own.as<float>()[t * n + i];
      for (int64_t f = 0; f < factors; ++f) v += common.as<float>()[t * factors + f] * mix.as<float>()[f * n + i];
      x[static_cast<size_t>(t * n + i)] = v * (1.0 + static_cast<double>(i % 7));
    }
  Tensor h = Tensor::host(DType::f32, {n, n});
  for (int64_t i = 0; i < n; ++i)
    for (int64_t j = 0; j <= i; ++j) {
      double sum = 0;
      for (int64_t t = 0; t < tokens; ++t) sum += x[static_cast<size_t>(t * n + i)] * x[static_cast<size_t>(t * n + j)];
      h.as<float>()[i * n + j] = h.as<float>()[j * n + i] = static_cast<float>(sum);
    }
  return h;
}

inline float mean_diagonal(const Tensor& h) {
  double sum = 0;
  for (int64_t i = 0; i < h.rows(); ++i) sum += h.as<float>()[i * h.rows() + i];
  return static_cast<float>(sum / static_cast<double>(h.rows()));
}

inline Tensor diagonal_of(const Tensor& h) {
  Tensor d = Tensor::host(DType::f32, {h.rows()});
  for (int64_t i = 0; i < h.rows(); ++i) d.as<float>()[i] = h.as<float>()[i * h.rows() + i];
  return d;
}

inline Matrix widened(const Tensor& t) { return Matrix(t.as<float>(), t.as<float>() + t.numel()); }

inline Matrix damped(const Tensor& h, double lambda) {
  Matrix m = widened(h);
  for (int64_t i = 0; i < h.rows(); ++i) m[static_cast<size_t>(i * h.rows() + i)] += lambda;
  return m;
}

// a^-1 by Gauss-Jordan with the pivots in order; a is positive definite.
inline Matrix inverse(Matrix a, int64_t n) {
  Matrix b(static_cast<size_t>(n * n), 0.0);
  for (int64_t i = 0; i < n; ++i) b[static_cast<size_t>(i * n + i)] = 1;
  for (int64_t k = 0; k < n; ++k) {
    const double pivot = a[static_cast<size_t>(k * n + k)];
    for (int64_t j = 0; j < n; ++j)
      a[static_cast<size_t>(k * n + j)] /= pivot, b[static_cast<size_t>(k * n + j)] /= pivot;
    for (int64_t i = 0; i < n; ++i) {
      const double f = a[static_cast<size_t>(i * n + k)];
      if (i == k || f == 0) continue;
      for (int64_t j = 0; j < n; ++j) {
        a[static_cast<size_t>(i * n + j)] -= f * a[static_cast<size_t>(k * n + j)];
        b[static_cast<size_t>(i * n + j)] -= f * b[static_cast<size_t>(k * n + j)];
      }
    }
  }
  return b;
}

// Upper U with U^T U = a.
inline Matrix cholesky_upper(const Matrix& a, int64_t n) {
  Matrix u(static_cast<size_t>(n * n), 0.0);
  for (int64_t i = 0; i < n; ++i)
    for (int64_t j = i; j < n; ++j) {
      double sum = a[static_cast<size_t>(i * n + j)];
      for (int64_t k = 0; k < i; ++k) sum -= u[static_cast<size_t>(k * n + i)] * u[static_cast<size_t>(k * n + j)];
      u[static_cast<size_t>(i * n + j)] = i == j ? std::sqrt(sum) : sum / u[static_cast<size_t>(i * n + i)];
    }
  return u;
}

// tr((a - b) h (a - b)^T) for host f32 matrices.
inline double trace_loss(const Tensor& a, const Tensor& b, const Matrix& h) {
  const int64_t n = a.cols();
  double sum = 0;
  for (int64_t o = 0; o < a.rows(); ++o)
    for (int64_t i = 0; i < n; ++i) {
      const double di = static_cast<double>(a.as<float>()[o * n + i]) - b.as<float>()[o * n + i];
      for (int64_t j = 0; j < n; ++j)
        sum += di * h[static_cast<size_t>(i * n + j)] *
               (static_cast<double>(a.as<float>()[o * n + j]) - b.as<float>()[o * n + j]);
    }
  return sum;
}

inline double total(const Tensor& f64) {
  double sum = 0;
  for (int64_t i = 0; i < f64.numel(); ++i) sum += f64.as<double>()[i];
  return sum;
}

template <class T>
Tensor host_tensor(DType dtype, Shape shape, const std::vector<T>& values) {
  return Tensor::host_from<T>(dtype, shape, values);
}

// Whole numbers in [0, below), keyed by seed.
inline Tensor random_codes(Shape shape, int below, uint64_t seed) {
  const Rng rng(seed, "random_codes");
  Tensor t = Tensor::host(DType::u8, shape);
  for (int64_t i = 0; i < t.numel(); ++i)
    t.as<uint8_t>()[i] = static_cast<uint8_t>(rng.uniform_at(static_cast<uint64_t>(i)) * below);
  return t;
}

}  // namespace fewbit::test
