// The factor of the damped Gram matrix and the shift of targets: the CPU half. Cholesky is blocked here (LAPACK for the
// diagonal tiles), because OpenBLAS must stay on one thread for the bits to be independent of the thread count.
#include "kernels/quantize/factor.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <vector>

#include "kernels/cpu/blas_cpu.h"
#include "src/core/parallel.h"

namespace fewbit::cpu {
namespace {

constexpr int64_t kPanel = 256;

// A = L L^T in place on the lower triangle of a row-major [n, n]; returns the failing minor's order or 0.
template <class T>
int64_t cholesky(T* a, int64_t n) {
  blas::use_one_thread();
  for (int64_t k = 0; k < n; k += kPanel) {
    const int64_t end = std::min(n, k + kPanel), width = end - k, tiles = (n - end + kPanel - 1) / kPanel;
    if (const int info = blas::potrf_lower(static_cast<int>(width), a + k * n + k, static_cast<int>(n)))
      return k + info;
    for (int64_t i = k; i < end; ++i)
      if (!std::isfinite(a[i * n + i])) return i + 1;
    parallel_for(n - end, 128, [&](int64_t r0, int64_t r1) {
      blas::solve_right(CblasLower, CblasTrans, r1 - r0, width, a + k * n + k, n, a + (end + r0) * n + k, n);
    });
    parallel_for(tiles * tiles, 1, [&](int64_t t0, int64_t t1) {
      for (int64_t t = t0; t < t1; ++t) {
        const int64_t i = end + t / tiles * kPanel, j = end + t % tiles * kPanel;
        if (j > i) continue;
        blas::gemm(CblasNoTrans, CblasTrans, std::min(kPanel, n - i), std::min(kPanel, n - j), width, T(-1),
                   a + i * n + k, n, a + j * n + k, n, T(1), a + i * n + j, n);
      }
    });
  }
  return 0;
}

template <class T>
FactorStatus factorize_as(const float* h, float lambda, int64_t n, float* r) {
  // Reversing rows and columns of a contiguous square matrix is reversing its memory.
  std::vector<T> a(static_cast<size_t>(n * n));
  std::atomic<bool> finite{true};
  const int64_t last = n * n - 1;
  parallel_for(n, 64, [&](int64_t begin, int64_t end) {
    for (int64_t k = begin * n; k < end * n; ++k) {
      const T v = h[last - k];
      if (!std::isfinite(v)) finite = false;
      a[static_cast<size_t>(k)] = k % (n + 1) == 0 ? v + static_cast<T>(lambda) : v;
    }
  });
  if (!finite) return {1};
  if (const int64_t pivot = cholesky(a.data(), n)) return {pivot};
  parallel_for(n, 64, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i)
      for (int64_t j = 0; j < n; ++j)
        r[i * n + j] = j < i ? 0.f : static_cast<float>(a[static_cast<size_t>(last - (i * n + j))]);
  });
  return {};
}

}  // namespace

FactorStatus factorize(Exec&, ConstTensorView h, float lambda, Precision precision, TensorView r) {
  const int64_t n = h.rows();
  FEWBIT_ASSERT(h.cols() == n && r.rows() == n && r.cols() == n);
  return precision == Precision::f32 ? factorize_as<float>(h.as<float>(), lambda, n, r.as<float>())
                                     : factorize_as<double>(h.as<float>(), lambda, n, r.as<float>());
}

FactorStatus shift_targets(Exec&, ConstTensorView w, ConstTensorView cross, ConstTensorView gram, float lambda,
                           TensorView target) {
  const int64_t out = w.rows(), n = w.cols();
  FEWBIT_ASSERT(cross.rows() == n && cross.cols() == n && gram.shape == cross.shape && target.shape == w.shape);
  std::vector<double> factor(static_cast<size_t>(n * n)), shift(static_cast<size_t>(n * n));
  std::atomic<bool> finite{true};
  parallel_for(n, 64, [&](int64_t begin, int64_t end) {
    for (int64_t k = begin * n; k < end * n; ++k) {
      const double g = gram.as<float>()[k], c = cross.as<float>()[k];
      if (!std::isfinite(g) || !std::isfinite(c)) finite = false;
      shift[static_cast<size_t>(k)] = c - g;
      factor[static_cast<size_t>(k)] = k % (n + 1) != 0 ? g : (g == 0 ? 1.0 : g) + lambda;
    }
  });
  if (!finite) return {1};
  if (const int64_t pivot = cholesky(factor.data(), n)) return {pivot};
  parallel_for(out, 64, [&](int64_t begin, int64_t end) {
    const int64_t rows = end - begin;
    const std::vector<double> wide(w.as<float>() + begin * n, w.as<float>() + end * n);
    std::vector<double> x(static_cast<size_t>(rows * n));
    blas::gemm(CblasNoTrans, CblasNoTrans, rows, n, n, 1.0, wide.data(), n, shift.data(), n, 0.0, x.data(), n);
    blas::solve_right(CblasLower, CblasTrans, rows, n, factor.data(), n, x.data(), n);
    blas::solve_right(CblasLower, CblasNoTrans, rows, n, factor.data(), n, x.data(), n);
    for (int64_t i = 0; i < rows * n; ++i)
      target.as<float>()[begin * n + i] = static_cast<float>(wide[static_cast<size_t>(i)] + x[static_cast<size_t>(i)]);
  });
  return {};
}

}  // namespace fewbit::cpu
