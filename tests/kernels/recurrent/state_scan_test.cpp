// The selective state space against a reference in double, whole and in pieces through its state.
#include "kernels/recurrent/state_scan.h"

#include <algorithm>
#include <cmath>

#include "tests/kernels/op_test.h"

namespace fewbit::test {
namespace {

struct ScanCase {
  int64_t seqs, len;
  ScanArgs args;
};

struct ScanTensors {
  Tensor x, dt, a_log, dt_bias, d;
  ScanTensors(const ScanCase& c, DType dtype)
      : x(random_normal(dtype, {c.seqs * c.len, c.args.width()}, 1)),
        dt(random_normal(dtype, {c.seqs * c.len, c.args.heads}, 2)),
        a_log(random_normal(DType::f32, {c.args.heads}, 3)),
        dt_bias(random_normal(DType::f32, {c.args.heads}, 4)),
        d(random_normal(DType::f32, {c.args.heads}, 5)) {}
};

// The state behind the tokens is left in `state`.
std::vector<double> scan_reference(const ScanCase& c, const ScanTensors& in, std::vector<double>& state) {
  const auto& [heads, groups, dim, n] = c.args;
  const std::vector<double> x = doubles(in.x), dt = doubles(in.dt), a_log = doubles(in.a_log),
                            bias = doubles(in.dt_bias), d = doubles(in.d);
  std::vector<double> out(at(c.seqs * c.len * heads * dim));
  state.assign(at(c.seqs * heads * dim * n), 0);
  for (int64_t s = 0; s < c.seqs; ++s)
    for (int64_t t = s * c.len; t < (s + 1) * c.len; ++t)
      for (int64_t h = 0; h < heads; ++h) {
        const double* row = x.data() + t * c.args.width();
        const double* b = row + heads * dim + h / (heads / groups) * n;
        const double* from = b + groups * n;
        const double step = std::log1p(std::exp(dt[at(t * heads + h)] + bias[at(h)]));
        for (int64_t p = 0; p < dim; ++p) {
          double sum = d[at(h)] * row[h * dim + p];
          for (int64_t i = 0; i < n; ++i) {
            double& v = state[at(((s * heads + h) * dim + p) * n + i)];
            v = v * std::exp(-std::exp(a_log[at(h)]) * step) + step * row[h * dim + p] * b[i];
            sum += v * from[i];
          }
          out[at((t * heads + h) * dim + p)] = sum;
        }
      }
  return out;
}

FEWBIT_DEVICE_TEST(StateScan, WholeAndInPieces) {
  for (const DType dtype : kComputeTypes)
    for (const ScanCase& c : {ScanCase{2, 19, {4, 2, 32, 16}}, ScanCase{1, 9, {3, 3, 40, 20}},
                              ScanCase{1, 33, {8, 1, 64, 128}}, ScanCase{2, 8, {2, 1, 16, 256}}}) {
      const ScanTensors in(c, dtype);
      const Tensor a = ex.to_device(in.a_log), bias = ex.to_device(in.dt_bias), d = ex.to_device(in.d);
      const auto scan = [&](const Tensor& x, const Tensor& dt, TensorView state, TensorView out) {
        const Tensor dx = ex.to_device(x), ddt = ex.to_device(dt);
        state_scan(ex, {.x = dx, .dt = ddt, .a_log = a, .dt_bias = bias, .d = d}, c.seqs, c.args, state, out);
        return ex.to_host(out);
      };
      std::vector<double> behind;
      const std::vector<double> expected = scan_reference(c, in, behind);
      const int64_t cols = c.args.heads * c.args.head_dim;
      const Tensor whole = poisoned(ex, dtype, {c.seqs * c.len, cols}), found = scan(in.x, in.dt, {}, whole);
      EXPECT_LE(error_of(ex, whole, expected), op_tolerance(dtype)) << c.args.state << " " << name_of(dtype);
      const Tensor state = ex.alloc_zeros(DType::f32, {c.seqs, c.args.heads, c.args.head_dim, c.args.state});
      for (int64_t begin = 0, n = 1; begin < c.len; begin += n, n = 11) {
        const int64_t end = std::min(begin + n, c.len);
        const Tensor y = poisoned(ex, dtype, {c.seqs * (end - begin), cols});
        EXPECT_EQ(first_difference(scan(piece(in.x, c.seqs, begin, end), piece(in.dt, c.seqs, begin, end), state, y),
                                   piece(found, c.seqs, begin, end)),
                  "")
            << c.args.state << " " << begin;
      }
      EXPECT_LE(error_of(ex, state, behind), op_tolerance(DType::f32)) << c.args.state << " " << name_of(dtype);
    }
}

}  // namespace
}  // namespace fewbit::test
