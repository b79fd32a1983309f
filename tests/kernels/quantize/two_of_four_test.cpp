// 2:4 sparsity in the ops: the column loop with its mask against the definition in f64, pruning alone, and the descent
// that exchanges weights.
#include "kernels/grids/two_of_four.h"

#include "kernels/quantize/error_feedback.h"
#include "kernels/quantize/factor.h"
#include "kernels/quantize/matrix_edit.h"
#include "kernels/quantize/refine.h"
#include "tests/kernels/quantize/quantizer_fixture.h"
#include "tests/support/devices.h"

namespace fewbit {
namespace {

using namespace test;

constexpr int kZero = 8, kMaxCode = 15;
constexpr double kQuarterOfAll = 0.25;  // rows that may have another mask: a tie of two pairs changes all that follows

struct Loop {
  int64_t out = 24, in = 256, group = 64;
  ScaleRule rule = ScaleRule::diag_grid;
};

std::vector<Loop> loops() {
  std::vector<Loop> all;
  for (const int64_t group : {32, 128, 256, 96}) all.push_back({.group = group});
  all.push_back({.in = 1100, .group = 128});
  all.push_back({.in = 76, .group = 32, .rule = ScaleRule::absmax});
  all.push_back({.group = 128, .rule = ScaleRule::loop_grid});
  all.push_back({.in = 384, .group = 384});  // wider than a tile
  return all;
}

struct Coded24 {
  Tensor codes{}, scales{}, loss{};
};

struct Problem {
  Tensor w{}, h{};
  float lambda = 0;
};
Problem problem_of(const Loop& l) {
  Problem p{.w = random_normal(DType::f32, {l.out, l.in}, 52, 0.05f), .h = correlated_gram(l.in, 150, 51)};
  p.lambda = 0.01f * mean_diagonal(p.h);
  return p;
}

Coded24 run(Exec& ex, const Loop& l, const Problem& p) {
  const Tensor w = ex.to_device(p.w), h = ex.to_device(p.h), diag = ex.to_device(diagonal_of(p.h));
  const Tensor r = ex.alloc(DType::f32, {l.in, l.in});
  if (!factorize(ex, h, p.lambda, Precision::f64, r).ok()) bug("the test's matrix is not positive definite");
  const Tensor codes = poisoned(ex, DType::u8, {l.out, l.in}),
               scales = poisoned(ex, DType::f32, {l.out, (l.in + l.group - 1) / l.group}),
               loss = poisoned(ex, DType::f64, {l.out});
  error_feedback(ex, {.w = w, .r = r, .h_diag = diag, .search = default_search(4, true, l.rule), .two_of_four = true},
                 {.codes = codes, .scales = scales, .group = l.group}, loss);
  return {ex.to_host(codes), ex.to_host(scales), ex.to_host(loss)};
}

int most_in_a_quad(const Tensor& codes) {
  int most = 0;
  for (int64_t i = 0; i < codes.numel(); i += 4) {
    int set = 0;
    for (int64_t k = i; k < i + 4; ++k) set += codes.as<uint8_t>()[k] != kZero;
    most = std::max(most, set);
  }
  return most;
}

double level_of(double w, double scale) {
  return std::min(std::max(std::nearbyint(w / scale), -1.0 * kZero), 1.0 * (kMaxCode - kZero));
}

// The mask of a quad by its definition: the pair without which the least is lost. Live weights w of one row, u the
// inverse's upper factor.
int pair_by_definition(const Matrix& w, const Matrix& u, int64_t in, int64_t j) {
  int best = 0;
  double least = INFINITY;
  for (int mask = 0; mask < 16; ++mask) {
    if (__builtin_popcount(static_cast<unsigned>(mask)) != 2) continue;
    double cost = 0;
    for (int64_t i = j; i < j + 4; ++i)
      if (!(mask >> (i - j) & 1)) cost += std::pow(w[static_cast<size_t>(i)] / u[static_cast<size_t>(i * in + i)], 2);
    if (cost >= least) continue;
    least = cost;
    best = mask;
  }
  return best;
}

// Codes of one row under given scales, by the recursion in f64.
std::vector<uint8_t> row_by_definition(const Loop& l, Matrix w, const Matrix& u, const float* scales) {
  std::vector<uint8_t> codes;
  int mask = 0;
  for (int64_t j = 0; j < l.in; ++j) {
    const double scale = scales[j / l.group];
    if (j % 4 == 0) mask = pair_by_definition(w, u, l.in, j);
    const double v = w[static_cast<size_t>(j)], level = mask >> (j % 4) & 1 ? level_of(v, scale) : 0;
    codes.push_back(static_cast<uint8_t>(level + kZero));
    const double e = (v - level * scale) / u[static_cast<size_t>(j * l.in + j)];
    for (int64_t k = j; k < l.in; ++k) w[static_cast<size_t>(k)] -= e * u[static_cast<size_t>(j * l.in + k)];
  }
  return codes;
}

FEWBIT_DEVICE_TEST(TwoOfFour, MaskAndCodesAreThoseOfTheDefinition) {
  for (const Loop& l : loops()) {
    const Problem p = problem_of(l);
    const Coded24 got = run(ex, l, p);
    const Matrix u = cholesky_upper(inverse(damped(p.h, p.lambda), l.in), l.in);
    int64_t others = 0;
    for (int64_t o = 0; o < l.out; ++o) {
      const Matrix w(p.w.as<float>() + o * l.in, p.w.as<float>() + (o + 1) * l.in);
      const std::vector<uint8_t> want = row_by_definition(l, w, u, got.scales.as<float>() + o * got.scales.cols());
      others += !std::equal(want.begin(), want.end(), got.codes.as<uint8_t>() + o * l.in);
    }
    EXPECT_LE(static_cast<double>(others), kQuarterOfAll * static_cast<double>(l.out)) << l.in << " " << l.group;
    EXPECT_EQ(most_in_a_quad(got.codes), 2);
    const Tensor q = Tensor::host(DType::f32, {l.out, l.in});
    for (int64_t i = 0; i < q.numel(); ++i)
      q.as<float>()[i] = static_cast<float>(got.codes.as<uint8_t>()[i] - kZero) *
                         got.scales.as<float>()[i / l.in * got.scales.cols() + i % l.in / l.group];
    const double trace = trace_loss(p.w, q, damped(p.h, p.lambda));
    EXPECT_NEAR(total(got.loss), trace, tol::kLossIdentity * trace);
  }
}

// Live weights, and what the inputs say of them: against magnitude under the same codes for what stays.
FEWBIT_DEVICE_TEST(TwoOfFour, TheLoopBeatsMagnitudeByHalf) {
  const Loop l{.out = 64, .group = 128};
  Problem p = problem_of(l);
  const double chosen = total(run(ex, l, p).loss);
  const Tensor left = ex.to_device(p.w);
  prune_quads(ex, {}, left);
  EXPECT_LT(chosen, 0.5 * trace_loss(p.w, ex.to_host(left), damped(p.h, p.lambda)));  // not even rounded
}

FEWBIT_DEVICE_TEST(TwoOfFour, TheGpuChoosesAsTheCpuDoes) {
  if (!ex.on_cuda()) GTEST_SKIP() << "compares the GPU with the CPU";
  Exec cpu = Exec::cpu();
  for (const Loop& l : loops()) {
    const Problem p = problem_of(l);
    const Coded24 here = run(cpu, l, p), there = run(ex, l, p);
    int64_t others = 0;
    for (int64_t o = 0; o < l.out; ++o)
      others +=
          !first_difference(here.codes.view().row_range(o, o + 1), there.codes.view().row_range(o, o + 1)).empty();
    EXPECT_LE(static_cast<double>(others), kQuarterOfAll * static_cast<double>(l.out)) << l.in << " " << l.group;
    EXPECT_NEAR(total(there.loss), total(here.loss), 0.02 * total(here.loss));
  }
}

FEWBIT_DEVICE_TEST(TwoOfFour, PruningKeepsTheLargerTwo) {
  const Tensor w = host_tensor<float>(DType::f32, {2, 8},
                                      {1, -3, 2, 0.5f, 5, 5, 5, 5,  //
                                       0, 0, 0, 7, -1, 2, -3, 4});
  const Tensor s = host_tensor<float>(DType::f32, {8}, {10, 1, 1, 1, 1, 1, 1, 0});
  const Tensor alone = ex.to_device(w), weighed = ex.to_device(w);
  prune_quads(ex, {}, alone);
  prune_quads(ex, ex.to_device(s), weighed);
  EXPECT_EQ(first_difference(ex.to_host(alone), host_tensor<float>(DType::f32, {2, 8},
                                                                   {0, -3, 2, 0, 5, 5, 0, 0,  //
                                                                    0, 0, 0, 7, 0, 0, -3, 4})),
            "");
  EXPECT_EQ(first_difference(ex.to_host(weighed), host_tensor<float>(DType::f32, {2, 8},
                                                                     {1, -3, 0, 0, 5, 5, 0, 0,  //
                                                                      0, 0, 0, 7, 0, 2, -3, 0})),
            "");
}

// Plainly rounded weights of the larger two of every four, to be improved.
struct Refined {
  Loop l;
  Tensor target{}, h{}, codes{}, scales{};
  Matrix hd{};

  Refined(Exec& ex, const Loop& of) : l(of) {
    Problem p = problem_of(l);
    hd = damped(p.h, p.lambda);
    for (int64_t i = 0; i < l.in * l.in; ++i) p.h.as<float>()[i] = static_cast<float>(hd[static_cast<size_t>(i)]);
    hd = widened(p.h);
    target = std::move(p.w);
    h = ex.to_device(p.h);
    Tensor q = clone_host(target);
    Exec cpu = Exec::cpu();
    prune_quads(cpu, {}, q);
    Tensor host = Tensor::host(DType::u8, {l.out, l.in}), scale = Tensor::host(DType::f32, {l.out, groups()});
    std::fill_n(scale.as<float>(), scale.numel(), 0.02f);
    for (int64_t i = 0; i < q.numel(); ++i)
      host.as<uint8_t>()[i] = static_cast<uint8_t>(grid_level(q.as<float>()[i], 0.02f, kZero, kMaxCode) + kZero);
    codes = ex.to_device(host);
    scales = ex.to_device(scale);
  }
  int64_t groups() const { return (l.in + l.group - 1) / l.group; }
  void step(Exec& ex, bool scales_too) {
    const Tensor t = ex.to_device(target);
    const RefineArgs args{.target = t, .h = h, .two_of_four = true};
    const MutableCodedView view{.codes = codes, .scales = scales, .group = l.group};
    if (scales_too) refit_scales(ex, args, view);
    descend_codes(ex, args, view);
  }
  Tensor values(Exec& ex) const {
    const Tensor c = ex.to_host(codes), s = ex.to_host(scales);
    Tensor q = Tensor::host(DType::f32, {l.out, l.in});
    for (int64_t i = 0; i < q.numel(); ++i)
      q.as<float>()[i] =
          static_cast<float>(c.as<uint8_t>()[i] - kZero) * s.as<float>()[i / l.in * groups() + i % l.in / l.group];
    return q;
  }
};

FEWBIT_DEVICE_TEST(TwoOfFour, TheDescentLowersTheLossAndKeepsTheSparsity) {
  for (const Loop& l : {Loop{}, Loop{.out = 70, .in = 1100, .group = 128}, Loop{.in = 76, .group = 32}}) {
    Refined r(ex, l);
    const Tensor before = ex.to_host(r.codes);
    double loss = trace_loss(r.target, r.values(ex), r.hd);
    const double start = loss;
    for (int round = 0; round < 4; ++round) {
      r.step(ex, round % 2 == 1);
      const double now = trace_loss(r.target, r.values(ex), r.hd);
      EXPECT_LE(now, loss * (1 + tol::kF32Op));
      EXPECT_EQ(most_in_a_quad(ex.to_host(r.codes)), 2);
      loss = now;
    }
    EXPECT_LT(loss, 0.5 * start);
    int64_t moved = 0;  // weights that were pruned and no longer are
    const Tensor after = ex.to_host(r.codes);
    for (int64_t i = 0; i < after.numel(); ++i)
      moved += before.as<uint8_t>()[i] == kZero && after.as<uint8_t>()[i] != kZero;
    EXPECT_GT(moved, after.numel() / 20);
  }
}

// The fixed point: no zero can take the place of a weight of its quad with a gain.
FEWBIT_DEVICE_TEST(TwoOfFour, TheDescentEndsWhereNoExchangeGains) {
  const Loop l{.out = 3, .in = 96, .group = 32};
  Refined r(ex, l);
  for (int i = 0; i < 80; ++i) r.step(ex, false);
  const Tensor codes = ex.to_host(r.codes), q = r.values(ex);
  const double loss = trace_loss(r.target, q, r.hd);
  for (int64_t o = 0; o < l.out; ++o)
    for (int64_t j = 0; j < l.in; ++j)
      for (int64_t k = j / 4 * 4; k < j / 4 * 4 + 4; ++k) {
        const uint8_t *row = codes.as<uint8_t>() + o * l.in, zero = kZero;
        if (row[j] != zero || row[k] == zero || std::count(row + j / 4 * 4, row + j / 4 * 4 + 4, zero) != 2) continue;
        for (const int level : {-8, -4, -2, -1, 1, 2, 4, 7}) {
          Tensor other = clone_host(q);
          other.as<float>()[o * l.in + k] = 0;
          other.as<float>()[o * l.in + j] = static_cast<float>(level) * 0.02f;
          EXPECT_GT(trace_loss(r.target, other, r.hd), loss * (1 - tol::kLossIdentity));
        }
      }
}

}  // namespace
}  // namespace fewbit
