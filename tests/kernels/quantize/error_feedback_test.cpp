// The column loop against the textbook: U = chol(H^-1) upper, weights updated in place column by column, in f64.
#include "kernels/quantize/error_feedback.h"

#include <numeric>

#include "kernels/quantize/factor.h"
#include "kernels/quantize/group_search.h"
#include "kernels/statistics/gram_loss.h"
#include "tests/kernels/quantize/quantizer_fixture.h"
#include "tests/support/devices.h"

namespace fewbit {
namespace {

using namespace test;

struct LoopCase {
  int64_t out = 24, in = 300, group = 128;
  int bits = 4;
  bool symmetric = true;
  ScaleRule rule = ScaleRule::diag_grid;
  bool fixed = false;  // grids chosen beforehand, columns scattered over them
  std::string str() const {
    return "in" + std::to_string(in) + "_g" + std::to_string(group) + "_bits" + std::to_string(bits) +
           (symmetric ? "" : "_asym") + (fixed ? "_fixed" : "") +
           (rule == ScaleRule::loop_grid ? "_loop"
            : rule == ScaleRule::absmax  ? "_absmax"
                                         : "");
  }
};

struct Result {
  Tensor codes{}, scales{}, zeros{}, loss{};
};

Tensor scattered_groups(const LoopCase& s, int64_t groups) {
  Tensor g = Tensor::host(DType::i32, {s.in});
  for (int64_t i = 0; i < s.in; ++i) g.as<int32_t>()[i] = static_cast<int32_t>(i * 5 % groups);
  return g;
}

// Grids for `fixed`: the absmax of each row, a little different by group.
void fixed_grids(const LoopCase& s, const Tensor& w, int64_t groups, Result& r) {
  r.scales = Tensor::host(DType::f32, {s.out, groups});
  if (!s.symmetric) r.zeros = Tensor::host(DType::u8, {s.out, groups});
  for (int64_t o = 0; o < s.out; ++o)
    for (int64_t g = 0; g < groups; ++g) {
      GroupRange range;
      for (int64_t i = 0; i < s.in; ++i) {
        range.min = std::min(range.min, w.as<float>()[o * s.in + i]);
        range.max = std::max(range.max, w.as<float>()[o * s.in + i]);
      }
      const GridChoice c = scale_candidate(default_search(s.bits, s.symmetric, ScaleRule::diag_grid), range,
                                           static_cast<int>(20 + 2 * g));
      r.scales.as<float>()[o * groups + g] = c.scale;
      if (!s.symmetric) r.zeros.as<uint8_t>()[o * groups + g] = static_cast<uint8_t>(c.zero);
    }
}

struct Grid64 {
  double scale = 1;
  int zero = 0, max_code = 0;
  double level(double w) const {
    return std::min(std::max(std::nearbyint(w / scale), -1.0 * zero), 1.0 * (max_code - zero));
  }
};

// The sum of e^2 over the columns [begin, end) of one row, w being live there; w is a copy.
double group_loss(Matrix w, const Matrix& u, int64_t in, int64_t begin, int64_t end, const Grid64& grid) {
  double loss = 0;
  for (int64_t j = begin; j < end; ++j) {
    const double wj = w[static_cast<size_t>(j)];
    const double e = (wj - grid.level(wj) * grid.scale) / u[static_cast<size_t>(j * in + j)];
    for (int64_t k = j; k < end; ++k) w[static_cast<size_t>(k)] -= e * u[static_cast<size_t>(j * in + k)];
    loss += e * e;
  }
  return loss;
}

// ScaleRule::loop_grid by its definition.
GridChoice choose_by_loop(const Matrix& w, const Matrix& u, int64_t in, int64_t begin, int64_t end,
                          const ScaleSearch& search) {
  GroupRange range;
  for (int64_t j = begin; j < end; ++j) {
    range.min = std::min(range.min, static_cast<float>(w[static_cast<size_t>(j)]));
    range.max = std::max(range.max, static_cast<float>(w[static_cast<size_t>(j)]));
  }
  GridChoice best;
  double least = INFINITY;
  for (int c = 0; c < scale_candidates(search); ++c) {
    const GridChoice grid = scale_candidate(search, range, c);
    const double loss = group_loss(w, u, in, begin, end, {grid.scale, grid.zero, (1 << search.bits) - 1});
    if (loss >= least) continue;
    least = loss;
    best = grid;
  }
  return best;
}

Result textbook(const LoopCase& s, const Tensor& weight, const Tensor& h, float lambda) {
  const int64_t in = s.in, groups = (in + s.group - 1) / s.group;
  const Matrix u = cholesky_upper(inverse(damped(h, lambda), in), in);
  const Tensor diag = diagonal_of(h), scattered = scattered_groups(s, groups);
  Result r;
  fixed_grids(s, weight, groups, r);
  r.codes = Tensor::host(DType::u8, {s.out, in});
  r.loss = Tensor::host_zeros(DType::f64, {s.out});
  const ScaleSearch search = default_search(s.bits, s.symmetric, s.rule);
  const int max_code = (1 << s.bits) - 1;
  for (int64_t o = 0; o < s.out; ++o) {
    Matrix w(weight.as<float>() + o * in, weight.as<float>() + (o + 1) * in);
    for (int64_t j = 0; j < in; ++j) {
      const int64_t g = s.fixed ? scattered.as<int32_t>()[j] : j / s.group;
      if (!s.fixed && j % s.group == 0) {
        const std::vector<float> live(w.begin() + j, w.begin() + std::min(in, j + s.group));
        const bool by_loop = s.rule == ScaleRule::loop_grid && s.group <= 128;
        const GridChoice c =
            by_loop ? choose_by_loop(w, u, in, j, std::min(in, j + s.group), search)
                    : cpu::search_group(live.data(), diag.as<float>() + j, static_cast<int64_t>(live.size()), search);
        r.scales.as<float>()[o * groups + g] = c.scale;
        if (!s.symmetric) r.zeros.as<uint8_t>()[o * groups + g] = static_cast<uint8_t>(c.zero);
      }
      const double scale = r.scales.as<float>()[o * groups + g];
      const int zero = s.symmetric ? 1 << (s.bits - 1) : r.zeros.as<uint8_t>()[o * groups + g];
      const double wj = w[static_cast<size_t>(j)];
      const double level = Grid64{scale, zero, max_code}.level(wj);
      r.codes.as<uint8_t>()[o * in + j] = static_cast<uint8_t>(level + zero);
      const double e = (wj - level * scale) / u[static_cast<size_t>(j * in + j)];
      for (int64_t k = j; k < in; ++k) w[static_cast<size_t>(k)] -= e * u[static_cast<size_t>(j * in + k)];
      r.loss.as<double>()[o] += e * e;
    }
  }
  return r;
}

Result run(Exec& ex, const LoopCase& s, const Tensor& weight, const Tensor& h, float lambda) {
  const int64_t groups = (s.in + s.group - 1) / s.group;
  const Tensor w = ex.to_device(weight), dh = ex.to_device(h), diag = ex.to_device(diagonal_of(h));
  const Tensor r = ex.alloc(DType::f32, {s.in, s.in});
  if (!factorize(ex, dh, lambda, Precision::f64, r).ok()) bug("the test's matrix is not positive definite");
  Result given;
  fixed_grids(s, weight, groups, given);
  const Tensor scales = s.fixed ? ex.to_device(given.scales) : poisoned(ex, DType::f32, {s.out, groups});
  Tensor zeros;
  if (!s.symmetric) zeros = s.fixed ? ex.to_device(given.zeros) : poisoned(ex, DType::u8, {s.out, groups});
  const Tensor group_of = s.fixed ? ex.to_device(scattered_groups(s, groups)) : Tensor();
  const Tensor codes = poisoned(ex, DType::u8, {s.out, s.in}), loss = poisoned(ex, DType::f64, {s.out});
  error_feedback(
      ex, {.w = w, .r = r, .h_diag = diag, .search = default_search(s.bits, s.symmetric, s.rule)},
      {.codes = codes, .scales = scales, .zeros = zeros, .group_of = group_of, .bits = s.bits, .group = s.group}, loss);
  Result out;
  out.codes = ex.to_host(codes);
  out.scales = ex.to_host(scales);
  if (!s.symmetric) out.zeros = ex.to_host(zeros);
  out.loss = ex.to_host(loss);
  return out;
}

std::vector<LoopCase> setups() {
  std::vector<LoopCase> all;
  for (const int64_t group : {32, 64, 128, 300, 96, 48, 192, 256, 512}) all.push_back({.group = group});
  for (const int64_t in : {1, 31, 128, 129, 256, 384}) all.push_back({.in = in, .group = 128});
  for (const int bits : {2, 3, 5, 6, 7, 8}) all.push_back({.bits = bits});
  for (const int bits : {3, 4, 8}) all.push_back({.group = 64, .bits = bits, .symmetric = false});
  all.push_back({.group = 300, .symmetric = false});
  all.push_back({.group = 64, .rule = ScaleRule::absmax});
  all.push_back({.group = 64, .symmetric = false, .rule = ScaleRule::absmax});
  for (const int64_t group : {48, 128, 256}) all.push_back({.group = group, .rule = ScaleRule::loop_grid});
  all.push_back({.bits = 3, .rule = ScaleRule::loop_grid});
  all.push_back({.group = 64, .symmetric = false, .rule = ScaleRule::loop_grid});
  all.push_back({.group = 64, .fixed = true});
  all.push_back({.group = 96, .symmetric = false, .fixed = true});
  all.push_back({.out = 40, .in = 1100, .group = 128});
  // Small ones of every kind.
  all.push_back({.in = 70, .group = 32, .symmetric = false});
  all.push_back({.in = 70, .group = 32, .rule = ScaleRule::loop_grid});
  all.push_back({.in = 70, .group = 32, .fixed = true});
  all.push_back({.in = 140, .group = 136});
  return all;
}

// Rows whose codes, scales and zeros are all the same. A weight that lies between two codes, or two candidates of equal
// error, may fall either way in f32 and f64, and the rest of that row then differs; other rows do not know.
std::vector<bool> equal_rows(const Result& a, const Result& b) {
  std::vector<bool> equal;
  const auto same = [](const Tensor& x, const Tensor& y, int64_t o) {
    return x.empty() || first_difference(x.view().row_range(o, o + 1), y.view().row_range(o, o + 1)).empty();
  };
  for (int64_t o = 0; o < a.codes.rows(); ++o)
    equal.push_back(same(a.codes, b.codes, o) && same(a.scales, b.scales, o) && same(a.zeros, b.zeros, o));
  return equal;
}

// Each case is a test of its own, so that the slow checkers of a GPU can take the small ones.
class ErrorFeedbackOn : public CasesOnDevices<LoopCase> {
 protected:
  static const LoopCase& c() { return the_case(); }
};
INSTANTIATE_TEST_SUITE_P(Cases, ErrorFeedbackOn, testing::Combine(testing::ValuesIn(setups()), every_device()),
                         [](const auto& info) {
                           return std::get<0>(info.param).str() + "_" + std::get<1>(info.param);
                         });

TEST_P(ErrorFeedbackOn, CodesAreThoseOfTheTextbookLoop) {
  Exec ex = exec();
  const Tensor h = correlated_gram(c().in, 150, 21), w = random_normal(DType::f32, {c().out, c().in}, 22, 0.05f);
  const float lambda = 0.01f * mean_diagonal(h);
  const Result want = textbook(c(), w, h, lambda), got = run(ex, c(), w, h, lambda);
  const std::vector<bool> equal = equal_rows(got, want);
  int64_t flipped = 0;
  for (int64_t o = 0; o < c().out; ++o) {
    const double loss = want.loss.as<double>()[o];
    if (equal[static_cast<size_t>(o)])
      EXPECT_NEAR(got.loss.as<double>()[o], loss, tol::kLossIdentity * loss);
    else
      ++flipped;
  }
  EXPECT_LE(static_cast<double>(flipped), tol::kFlippedRows * static_cast<double>(c().out));
}

TEST_P(ErrorFeedbackOn, TheSumOfSquaresIsTheTrace) {
  Exec ex = exec();
  const Tensor h = correlated_gram(c().in, 150, 31), w = random_normal(DType::f32, {c().out, c().in}, 32, 0.05f);
  const float lambda = 0.01f * mean_diagonal(h);
  const Result got = run(ex, c(), w, h, lambda);
  const Tensor codes = ex.to_device(got.codes), scales = ex.to_device(got.scales),
               zeros = c().symmetric ? Tensor() : ex.to_device(got.zeros);
  const Tensor group_of = c().fixed ? ex.to_device(scattered_groups(c(), got.scales.cols())) : Tensor();
  const Tensor q = ex.alloc(DType::f32, {c().out, c().in});
  dequantize(
      ex,
      {.codes = codes, .scales = scales, .zeros = zeros, .group_of = group_of, .bits = c().bits, .group = c().group},
      q);
  const double trace = trace_loss(w, ex.to_host(q), damped(h, lambda));
  EXPECT_NEAR(total(got.loss), trace, tol::kLossIdentity * trace);
}

// Where a row is one group, no other rule over the same candidates can end with less.
FEWBIT_DEVICE_TEST(ErrorFeedback, TheLoopGridIsTheBestOfItsList) {
  for (const bool symmetric : {true, false}) {
    const Tensor h = correlated_gram(96, 150, 41), w = random_normal(DType::f32, {40, 96}, 42, 0.05f);
    const float lambda = 0.01f * mean_diagonal(h);
    LoopCase s{.out = 40, .in = 96, .group = 96, .bits = 3, .symmetric = symmetric};
    const Result by_diagonal = run(ex, s, w, h, lambda);
    s.rule = ScaleRule::loop_grid;
    const Result by_loop = run(ex, s, w, h, lambda);
    EXPECT_LT(total(by_loop.loss), 0.98 * total(by_diagonal.loss));
    for (int64_t o = 0; o < s.out; ++o)
      EXPECT_LE(by_loop.loss.as<double>()[o], by_diagonal.loss.as<double>()[o] * (1 + tol::kLossIdentity))
          << "row " << o;
  }
}

FEWBIT_DEVICE_TEST(GramLoss, IsTheTraceRowByRow) {
  // Of more than one strip of columns the last; there H is cut.
  for (const int64_t n : {1, 33, 150, 1100}) {
    const Tensor a = random_normal(DType::f32, {70, n}, 1), b = random_normal(DType::f32, {70, n}, 2);
    const Tensor h = correlated_gram(n, 200, 3);
    const Tensor loss = poisoned(ex, DType::f64, {70});
    const double want = trace_loss(a, b, widened(h));
    gram_loss(ex, ex.to_device(a), ex.to_device(b), ex.to_device(h), loss, LossSums::f32);
    EXPECT_NEAR(total(ex.to_host(loss)), want, tol::kF32Product * want);
    gram_loss(ex, ex.to_device(a), ex.to_device(b), ex.to_device(h), loss, LossSums::reported);
    EXPECT_NEAR(total(ex.to_host(loss)), want, tol::kF32Product * want);
    gram_loss(ex, ex.to_device(a), ex.to_device(b), ex.to_device(h), loss);
    EXPECT_NEAR(total(ex.to_host(loss)), want, tol::kF32Op * want);
    gram_loss(ex, ex.to_device(a), ex.to_device(a), ex.to_device(h), loss);
    EXPECT_EQ(total(ex.to_host(loss)), 0);
  }
}

// Where large terms cancel, f32 sums would lose the value.
FEWBIT_DEVICE_TEST(GramLoss, SurvivesCancellation) {
  const int64_t n = 64;
  Tensor h = Tensor::host(DType::f32, {n, n}), a = Tensor::host(DType::f32, {1, n});
  for (int64_t i = 0; i < n; ++i) {
    a.as<float>()[i] = i % 2 ? 1.f : -1.f;
    for (int64_t j = 0; j < n; ++j) h.as<float>()[i * n + j] = 4194304.f + (i == j ? 1.f : 0.f);
  }
  const Tensor loss = poisoned(ex, DType::f64, {1});
  gram_loss(ex, ex.to_device(a), ex.alloc_zeros(DType::f32, {1, n}), ex.to_device(h), loss);
  EXPECT_DOUBLE_EQ(total(ex.to_host(loss)), static_cast<double>(n));
}

}  // namespace
}  // namespace fewbit
