// The factor of the damped Gram matrix and the shift of targets: the CPU half. Cholesky is blocked here (LAPACK for the
// diagonal tiles), because OpenBLAS must stay on one thread for the bits to be independent of the thread count.
#include "kernels/quantize/factor.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <vector>

#include "kernels/cpu/blas_cpu.h"
#include "kernels/cpu/wide_product.h"
#include "src/core/parallel.h"

namespace fewbit::cpu {
namespace {

constexpr int64_t kPanel = 256;

// L of one tile on the diagonal; the failing minor's order or 0.
template <class T>
int64_t factor_tile(T* a, int64_t n, int64_t k, int64_t end) {
  if (const int info = blas::potrf_lower(static_cast<int>(end - k), a + k * n + k, static_cast<int>(n)))
    return k + info;
  for (int64_t i = k; i < end; ++i)
    if (!std::isfinite(a[i * n + i])) return i + 1;
  return 0;
}

bool owns(const PanelShare& share, int64_t row) { return row / kPanel % share.size == share.rank; }

// Rows [first, last), whole tiles of them, of columns [k, k + width): from their owners to all.
template <class T>
void exchange(const PanelShare& share, T* a, int64_t n, int64_t first, int64_t last, int64_t k, int64_t width) {
  const int64_t row_bytes = width * static_cast<int64_t>(sizeof(T));
  const auto each_tile = [&](int r, const auto& see) {
    for (int64_t i = first; i < last; i += kPanel)
      if (i / kPanel % share.size == r) see(i, std::min(last, i + kPanel));
  };
  std::vector<int64_t> begin{0};
  for (int r = 0; r < share.size; ++r) {
    begin.push_back(begin.back());
    each_tile(r, [&](int64_t i, int64_t end) { begin.back() += (end - i) * row_bytes; });
  }
  std::vector<T> all(static_cast<size_t>((last - first) * width));
  const auto copy = [&](int r, bool out) {
    T* at = all.data() + begin[static_cast<size_t>(r)] / static_cast<int64_t>(sizeof(T));
    each_tile(r, [&](int64_t i, int64_t end) {
      for (; i < end; ++i, at += width) {
        T* row = a + i * n + k;
        out ? std::copy_n(row, width, at) : std::copy_n(at, width, row);
      }
    });
  };
  copy(share.rank, true);
  share.gather(all.data(), begin);
  for (int r = 0; r < share.size; ++r)
    if (r != share.rank) copy(r, false);
}

// The panel of columns [k, end) below its tile, by all processes together.
template <class T>
void solve_shared(const PanelShare& share, T* a, int64_t n, int64_t k, int64_t end) {
  constexpr int64_t kRows = 128;
  parallel_for((n - end + kRows - 1) / kRows, 1, [&](int64_t p0, int64_t p1) {
    for (int64_t p = p0; p < p1; ++p)
      if (const int64_t i = end + p * kRows; owns(share, i))
        blas::solve_right(CblasLower, CblasTrans, std::min(kRows, n - i), end - k, a + k * n + k, n, a + i * n + k, n);
  });
  exchange(share, a, n, end, n, k, end - k);
}

// A = L L^T in place on the lower triangle of a row-major [n, n]; returns the failing minor's order or 0.
template <class T>
int64_t cholesky(T* a, int64_t n, const PanelShare& share) {
  blas::use_one_thread();
  for (int64_t k = 0; k < n; k += kPanel) {
    const int64_t end = std::min(n, k + kPanel), width = end - k, tiles = (n - end + kPanel - 1) / kPanel;
    if (!share.alone()) exchange(share, a, n, k, end, k, width);
    if (const int64_t pivot = factor_tile(a, n, k, end)) return pivot;
    if (share.alone())
      parallel_for(n - end, 128, [&](int64_t r0, int64_t r1) {
        blas::solve_right(CblasLower, CblasTrans, r1 - r0, width, a + k * n + k, n, a + (end + r0) * n + k, n);
      });
    else
      solve_shared(share, a, n, k, end);
    parallel_for(tiles * tiles, 1, [&](int64_t t0, int64_t t1) {
      for (int64_t t = t0; t < t1; ++t) {
        const int64_t i = end + t / tiles * kPanel, j = end + t % tiles * kPanel;
        if (j > i || !owns(share, i)) continue;
        blas::gemm(CblasNoTrans, CblasTrans, std::min(kPanel, n - i), std::min(kPanel, n - j), width, T(-1),
                   a + i * n + k, n, a + j * n + k, n, T(1), a + i * n + j, n);
      }
    });
  }
  return 0;
}

// Turns rows and columns of r [n, n] about, in place. edit(i, j, v) is what element (i, j) becomes when v arrives
// there.
template <class Edit>
void reverse_in_place(float* r, int64_t n, const Edit& edit) {
  parallel_for((n + 1) / 2, 64, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const int64_t across = n - 1 - i, cols = i == across ? (n + 1) / 2 : n;
      for (int64_t j = 0; j < cols; ++j) {
        float &one = r[i * n + j], &other = r[across * n + n - 1 - j];
        const float was = one;
        one = edit(i, j, other);
        other = edit(across, n - 1 - j, was);
      }
    }
  });
}

// r holds h, and in the end its factor.
FactorStatus factorize_f32(float lambda, int64_t n, float* r, const PanelShare& share) {
  std::atomic<bool> finite{true};
  // The middle element of an odd n arrives at its own place twice: `was` is what it was at first, so it is damped once.
  reverse_in_place(r, n, [&](int64_t i, int64_t j, float v) {
    if (!std::isfinite(v)) finite = false;
    return i == j ? v + lambda : v;
  });
  if (!finite) return {1};
  if (const int64_t pivot = cholesky(r, n, share)) return {pivot};
  reverse_in_place(r, n, [](int64_t i, int64_t j, float v) { return j < i ? 0.f : v; });
  return {};
}

FactorStatus factorize_f64(Exec& ex, const float* h, float lambda, int64_t n, float* r, const PanelShare& share) {
  // Reversing rows and columns of a contiguous square matrix is reversing its memory.
  const Tensor system = ex.alloc(DType::f64, {n, n});
  double* a = system.as<double>();
  std::atomic<bool> finite{true};
  const int64_t last = n * n - 1;
  parallel_for(n, 64, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i)
      for (int64_t j = 0; j < n; ++j) {
        const double v = h[last - (i * n + j)];
        if (!std::isfinite(v)) finite = false;
        a[i * n + j] = i == j ? v + static_cast<double>(lambda) : v;
      }
  });
  if (!finite) return {1};
  if (const int64_t pivot = cholesky(a, n, share)) return {pivot};
  parallel_for(n, 64, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i)
      for (int64_t j = 0; j < n; ++j) r[i * n + j] = j < i ? 0.f : static_cast<float>(a[last - (i * n + j)]);
  });
  return {};
}

// a = the f64 system of shift_targets: gram, mended and damped. False where gram or cross is not finite.
bool widen_system(const float* cross, const float* gram, float lambda, int64_t n, double* a) {
  std::atomic<bool> finite{true};
  parallel_for(n, 64, [&](int64_t begin, int64_t end) {
    for (int64_t k = begin * n; k < end * n; ++k) {
      const double g = gram[k];
      if (!std::isfinite(g) || !std::isfinite(cross[k])) finite = false;
      a[k] = g;
    }
    for (int64_t i = begin; i < end; ++i) a[i * n + i] = (a[i * n + i] == 0 ? 1.0 : a[i * n + i]) + lambda;
  });
  return finite;
}

}  // namespace

FactorStatus factorize(Exec& ex, ConstTensorView h, float lambda, Precision precision, TensorView r,
                       const PanelShare& share) {
  const int64_t n = h.rows();
  FEWBIT_ASSERT(h.cols() == n && r.rows() == n && r.cols() == n);
  if (precision == Precision::f64) return factorize_f64(ex, h.as<float>(), lambda, n, r.as<float>(), share);
  if (h.data != r.data) ex.copy(h, r);
  return factorize_f32(lambda, n, r.as<float>(), share);
}

namespace {

// The lower Cholesky factor of gram + lambda I, mended, in f64; empty where it has none, with its status.
Tensor factored_system(Exec& ex, ConstTensorView cross, ConstTensorView gram, float lambda, const PanelShare& share,
                       FactorStatus& status) {
  const int64_t n = gram.cols();
  FEWBIT_ASSERT(cross.rows() == n && cross.cols() == n && gram.shape == cross.shape);
  Tensor system = ex.alloc(DType::f64, {n, n});
  status = {1};
  if (!widen_system(cross.as<float>(), gram.as<float>(), lambda, n, system.as<double>())) return {};
  status = {cholesky(system.as<double>(), n, share)};
  return status.ok() ? std::move(system) : Tensor();
}

// x [rows, n] (gram + lambda I)^-1 in place, by its factor.
void solve_rows(const Tensor& system, double* x, int64_t begin, int64_t end) {
  const int64_t n = system.cols();
  blas::solve_right(CblasLower, CblasTrans, end - begin, n, system.as<double>(), n, x + begin * n, n);
  blas::solve_right(CblasLower, CblasNoTrans, end - begin, n, system.as<double>(), n, x + begin * n, n);
}

// Panels of rows of w, widened, times M, whose row i `fill` writes; finish(first, x, begin, end) makes of the rows
// [begin, end) of a panel's product, counted from its row `first`, what is added to them.
template <class Fill, class Finish>
void add_products(Exec& ex, ConstTensorView w, const Fill& fill, const Finish& finish, TensorView target) {
  const int64_t out = w.rows(), n = w.cols();
  const WideCut cut = square_cut(Device::cpu, out, n);
  const Tensor wide = ex.alloc(DType::f64, {cut.rows, n}), shift = ex.alloc(DType::f64, {cut.rows, n}),
               strip = ex.alloc(DType::f64, {n, cut.widest()});
  for (int64_t first = 0; first < out; first += cut.rows) {
    const int64_t rows = std::min(cut.rows, out - first);
    const float* from = w.as<float>() + first * n;
    float* to = target.as<float>() + first * n;
    parallel_for(rows, 64, [&](int64_t begin, int64_t end) {
      std::copy(from + begin * n, from + end * n, wide.as<double>() + begin * n);
    });
    wide_product(wide.as<double>(), n, rows, 64, n, cut, fill, strip.as<double>(), shift.as<double>());
    parallel_for(rows, 64, [&](int64_t begin, int64_t end) {
      double* x = shift.as<double>();
      finish(first, x, begin, end);
      for (int64_t i = begin * n; i < end * n; ++i) to[i] = static_cast<float>(wide.as<double>()[i] + x[i]);
    });
  }
}

// Columns [j0, j1) of row i of cross - gram.
struct Difference {
  const float *cross, *gram;
  int64_t n;
  void operator()(int64_t i, int64_t j0, int64_t j1, double* to) const {
    for (int64_t j = j0; j < j1; ++j)
      to[j - j0] = static_cast<double>(cross[i * n + j]) - static_cast<double>(gram[i * n + j]);
  }
};

}  // namespace

FactorStatus shift_targets(Exec& ex, ConstTensorView w, ConstTensorView cross, ConstTensorView gram, float lambda,
                           ConstTensorView more, float share, TensorView target, const PanelShare& panels,
                           Tensor* /*r*/) {
  FEWBIT_ASSERT(gram.cols() == w.cols() && target.shape == w.shape && (!more.data || more.shape == w.shape));
  FactorStatus status;
  const Tensor system = factored_system(ex, cross, gram, lambda, panels, status);
  if (!status.ok()) return status;
  add_products(
      ex, w, Difference{cross.as<float>(), gram.as<float>(), w.cols()},
      [&](int64_t first, double* x, int64_t begin, int64_t end) {
        const int64_t n = w.cols();
        const float* plus = more.data ? more.as<float>() + first * n : nullptr;
        for (int64_t i = begin * n; plus && i < end * n; ++i) x[i] += static_cast<double>(plus[i]);
        solve_rows(system, x, begin, end);
        for (int64_t i = begin * n; i < end * n; ++i) x[i] *= share;
      },
      target);
  return {};
}

FactorStatus shift_matrix(Exec& ex, ConstTensorView cross, ConstTensorView gram, float lambda, float share,
                          TensorView m, Tensor* /*r*/) {
  const int64_t n = gram.cols();
  FEWBIT_ASSERT(m.shape == gram.shape);
  FactorStatus status;
  const Tensor system = factored_system(ex, cross, gram, lambda, {}, status);
  if (!status.ok()) return status;
  const Difference difference{cross.as<float>(), gram.as<float>(), n};
  parallel_for(n, 64, [&](int64_t begin, int64_t end) {
    std::vector<double> x(static_cast<size_t>((end - begin) * n));
    for (int64_t i = begin; i < end; ++i) difference(i, 0, n, x.data() + (i - begin) * n);
    solve_rows(system, x.data(), 0, end - begin);
    std::transform(x.begin(), x.end(), m.as<float>() + begin * n,
                   [share](double v) { return static_cast<float>(share * v); });
  });
  return {};
}

void apply_shift(Exec& ex, ConstTensorView w, ConstTensorView m, TensorView target) {
  const int64_t n = w.cols();
  FEWBIT_ASSERT(m.rows() == n && m.cols() == n && target.shape == w.shape);
  const auto widened = [from = m.as<float>(), n](int64_t i, int64_t j0, int64_t j1, double* to) {
    std::copy(from + i * n + j0, from + i * n + j1, to);
  };
  add_products(
      ex, w, widened, [](int64_t, double*, int64_t, int64_t) {}, target);
}

}  // namespace fewbit::cpu
