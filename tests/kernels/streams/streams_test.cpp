// Hyper-connections against references in double.
#include "kernels/streams/streams.h"

#include <cmath>

#include "tests/kernels/op_test.h"

namespace fewbit::test {
namespace {

double logistic(double x) { return 1 / (1 + std::exp(-x)); }

struct Case {
  int64_t tokens, hidden;
  int streams, rounds;
};
constexpr Case kCases[] = {{5, 24, 2, 20}, {3, 300, 4, 1}, {1, 7, 8, 3}};
constexpr double kEps = 1e-3, kNormEps = 1e-6;

struct Reference {
  std::vector<double> out, mix;
};

void divide(std::vector<double>& m, int64_t n, int64_t inner, int64_t outer) {
  for (int64_t j = 0; j < n; ++j) {
    double sum = kEps;
    for (int64_t k = 0; k < n; ++k) sum += m[at(j * outer + k * inner)];
    for (int64_t k = 0; k < n; ++k) m[at(j * outer + k * inner)] /= sum;
  }
}

Reference reference_of(const Case& c, const Tensor& x, const Tensor& fn, const Tensor& base, const Tensor& scale) {
  const std::vector<double> v = doubles(x), w = doubles(fn), b = doubles(base), s = doubles(scale);
  const int64_t n = c.streams, cols = n * c.hidden, rows = fn.rows();
  Reference r;
  for (int64_t t = 0; t < c.tokens; ++t) {
    double squares = 0;
    for (int64_t i = 0; i < cols; ++i) squares += v[at(t * cols + i)] * v[at(t * cols + i)];
    std::vector<double> m(at(rows));
    for (int64_t row = 0; row < rows; ++row) {
      double dot = 0;
      for (int64_t i = 0; i < cols; ++i) dot += w[at(row * cols + i)] * v[at(t * cols + i)];
      const int64_t part = row < n ? 0 : row < 2 * n ? 1 : 2;
      m[at(row)] = dot / std::sqrt(squares / static_cast<double>(cols) + kNormEps) * s[at(part)] + b[at(row)];
    }
    for (int64_t i = 0; i < c.hidden; ++i) {
      double sum = 0;
      for (int64_t k = 0; k < n; ++k) sum += (logistic(m[at(k)]) + kEps) * v[at(t * cols + k * c.hidden + i)];
      r.out.push_back(sum);
    }
    if (rows == n) continue;
    for (int64_t k = 0; k < n; ++k) r.mix.push_back(2 * logistic(m[at(n + k)]));
    std::vector<double> p(m.begin() + 2 * n, m.end());
    for (int64_t j = 0; j < n; ++j) {
      double sum = 0;
      for (int64_t k = 0; k < n; ++k) sum += std::exp(p[at(j * n + k)]);
      for (int64_t k = 0; k < n; ++k) p[at(j * n + k)] = std::exp(p[at(j * n + k)]) / sum + kEps;
    }
    divide(p, n, n, 1);
    for (int round = 1; round < c.rounds; ++round) divide(p, n, 1, n), divide(p, n, n, 1);
    r.mix.insert(r.mix.end(), p.begin(), p.end());
  }
  return r;
}

FEWBIT_DEVICE_TEST(Streams, AreReadAndWritten) {
  for (const DType dtype : kComputeTypes)
    for (const Case& c : kCases) {
      const int64_t n = c.streams, rows = (2 + n) * n;
      const Tensor x = random_normal(dtype, {c.tokens, n * c.hidden}, 1),
                   fn = random_normal(DType::f32, {rows, n * c.hidden}, 2, 0.1f),
                   base = random_normal(DType::f32, {rows}, 3), scale = random_normal(DType::f32, {3}, 4),
                   branch = random_normal(dtype, {c.tokens, c.hidden}, 5);
      const Reference wanted = reference_of(c, x, fn, base, scale);
      const Tensor dx = ex.to_device(x), dfn = ex.to_device(fn), dbase = ex.to_device(base),
                   dscale = ex.to_device(scale);
      const Tensor out = poisoned(ex, dtype, {c.tokens, c.hidden}), mix = poisoned(ex, dtype, {c.tokens, n + n * n});
      const StreamArgs args{.streams = c.streams, .norm_eps = kNormEps, .eps = kEps, .rounds = c.rounds};
      read_streams(ex, dx, {.fn = dfn, .base = dbase, .scale = dscale}, args, out, mix);
      EXPECT_LE(error_of(ex, out, wanted.out), product_tolerance(dtype)) << c.streams << " " << name_of(dtype);
      EXPECT_LE(error_of(ex, mix, wanted.mix), product_tolerance(dtype)) << c.streams << " " << name_of(dtype);
      // Without a mix: the first part alone.
      const Tensor one = poisoned(ex, dtype, {c.tokens, c.hidden});
      const StreamWeights first{.fn = dfn.view().row_range(0, n),
                                .base = dbase.view().row_range(0, n),
                                .scale = dscale.view().row_range(0, 1)};
      read_streams(ex, dx, first, args, one, {});
      EXPECT_EQ(first_difference(ex.to_host(one), ex.to_host(out)), "");
      write_streams(ex, ex.to_device(branch), mix, dx);
      const std::vector<double> m = doubles(ex.to_host(mix)), v = doubles(x), b = doubles(branch);
      std::vector<double> written;
      for (int64_t t = 0; t < c.tokens; ++t)
        for (int64_t k = 0; k < n; ++k)
          for (int64_t i = 0; i < c.hidden; ++i) {
            double sum = m[at(t * (n + n * n) + k)] * b[at(t * c.hidden + i)];
            for (int64_t j = 0; j < n; ++j)
              sum += m[at(t * (n + n * n) + n + j * n + k)] * v[at((t * n + j) * c.hidden + i)];
            written.push_back(sum);
          }
      EXPECT_LE(error_of(ex, dx, written), op_tolerance(dtype)) << c.streams << " " << name_of(dtype);
    }
}

}  // namespace
}  // namespace fewbit::test
