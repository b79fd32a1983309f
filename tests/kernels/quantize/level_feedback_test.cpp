// The column loop and the descent on grids of levels, against their definitions in f64.
#include "kernels/quantize/level_feedback.h"

#include <gtest/gtest.h>

#include "kernels/quantize/factor.h"
#include "src/core/half.h"
#include "tests/kernels/quantize/quantizer_fixture.h"

namespace fewbit {
namespace {

using namespace test;

constexpr float kUneven[] = {-6, -4, -3, -2, -1.5f, -1, -0.5f, 0, 0.5f, 1, 1.5f, 2, 3, 4, 6};
constexpr float kFour[] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15};

struct Bench {
  Exec ex = Exec::cpu();
  LevelGrid grid;
  int64_t out, in;
  Tensor w, h, r, codes, d, dmin, scales, mins, loss;
  float lambda;

  Bench(const LevelGrid& g, int64_t rows, int64_t cols)
      : grid(g),
        out(rows),
        in(cols),
        w(random_normal(DType::f32, {out, in}, 5, 0.05f)),
        h(correlated_gram(in, 2 * in, 6)),
        r(Tensor::host(DType::f32, {in, in})),
        codes(Tensor::host(DType::u8, {out, in})),
        d(Tensor::host_zeros(DType::f32, {out, in / g.block})),
        dmin(Tensor::host_zeros(DType::f32, {out, in / g.block})),
        scales(Tensor::host_zeros(DType::f32, {out, in / g.sub})),
        mins(Tensor::host_zeros(DType::f32, {out, in / g.sub})),
        loss(Tensor::host(DType::f64, {out})),
        lambda(0.01f * mean_diagonal(h)) {
    EXPECT_TRUE(factorize(ex, h, lambda, Precision::f64, r, {}).ok());
    for (int64_t i = 0; i < in; ++i) h.as<float>()[i * in + i] += lambda;
  }
  LevelCodes view() const { return {codes, d, dmin, scales, mins}; }

  // One scale for a whole block that just covers it, scales and minima as far as the grid has them.
  void choose(int64_t row, int64_t b, const float* live) const {
    float most = 0;
    for (int64_t i = 0; i < grid.block; ++i) most = std::max(most, std::fabs(live[i]));
    const float range = grid.most_min > 0 ? 2 * most : most, top = grid.most_min > 0 ? 15 : 6;
    const bool rounded = grid.scale_set == ScaleSet::integers && grid.most_scale > 1;
    const int64_t subs = grid.block / grid.sub, at = row * (in / grid.block) + b;
    d.as<float>()[at] =
        grid.scale_set == ScaleSet::integers ? round_to_f16(range / top / (rounded ? 32.f : 1.f)) : 0x1p-10f;
    dmin.as<float>()[at] = round_to_f16(most / 32);
    for (int64_t j = 0; j < subs; ++j) {
      scales.as<float>()[at * subs + j] = grid.scale_set == ScaleSet::integers ? (rounded ? 32.f : 1.f) : 32.f;
      mins.as<float>()[at * subs + j] = 32;
    }
  }
  double value(int64_t o, int64_t i) const {
    const int64_t b = o * (in / grid.block) + i / grid.block, j = o * (in / grid.sub) + i / grid.sub;
    const double v =
        static_cast<double>(d.as<float>()[b]) * scales.as<float>()[j] * grid.levels[codes.as<uint8_t>()[o * in + i]];
    return grid.most_min > 0 ? v - static_cast<double>(dmin.as<float>()[b]) * mins.as<float>()[j] : v;
  }
  // tr(D H D^T) of a row.
  double row_loss(int64_t o) const {
    std::vector<double> e(static_cast<size_t>(in));
    for (int64_t i = 0; i < in; ++i) e[static_cast<size_t>(i)] = w.as<float>()[o * in + i] - value(o, i);
    double sum = 0;
    for (int64_t i = 0; i < in; ++i)
      for (int64_t j = 0; j < in; ++j)
        sum += e[static_cast<size_t>(i)] * h.as<float>()[i * in + j] * e[static_cast<size_t>(j)];
    return sum;
  }
  void feed_back() const {
    feed_back_levels(
        ex, {.target = w, .r = r}, grid, [this](int64_t row, int64_t b, const float* live) { choose(row, b, live); },
        view(), loss);
  }
};

LevelGrid grid_named(const std::string& name) {
  if (name == "nvfp4") return {.levels = kUneven, .block = 16, .sub = 16, .scale_set = ScaleSet::e4m3};
  if (name == "mxfp4") return {.levels = kUneven, .block = 32, .sub = 32, .scale_set = ScaleSet::e8m0};
  if (name == "one scale") return {.levels = kUneven, .block = 32, .sub = 32, .moves_d = true};
  return {.levels = kFour,
          .even = true,
          .block = 256,
          .sub = 32,
          .least_scale = 0,
          .most_scale = 63,
          .most_min = 63,
          .moves_d = true};
}

class LevelFeedback : public testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Grids, LevelFeedback, testing::Values("nvfp4", "mxfp4", "one scale", "minima"),
                         [](const auto& p) {
                           std::string name = p.param;
                           std::replace(name.begin(), name.end(), ' ', '_');
                           return name;
                         });

TEST_P(LevelFeedback, LossIsThatOfTheValuesAndBelowRoundings) {
  const Bench b(grid_named(GetParam()), 9, 512);  // several strips, rows that are no whole block
  b.feed_back();
  std::vector<double> fed;
  for (int64_t o = 0; o < b.out; ++o) {
    fed.push_back(b.row_loss(o));
    EXPECT_NEAR(b.loss.as<double>()[o] / fed.back(), 1, tol::kLossIdentity) << "row " << o;
  }
  double sum = 0, rounded = 0;
  for (int64_t o = 0; o < b.out; ++o) {  // the same scales, every weight by itself
    for (int64_t k = 0; k < b.in / b.grid.block; ++k) b.choose(o, k, b.w.as<float>() + o * b.in + k * b.grid.block);
    for (int64_t i = 0; i < b.in; ++i) {
      double least = HUGE_VAL;
      uint8_t best = 0;
      for (size_t c = 0; c < b.grid.levels.size(); ++c) {
        b.codes.as<uint8_t>()[o * b.in + i] = static_cast<uint8_t>(c);
        const double e = std::fabs(b.w.as<float>()[o * b.in + i] - b.value(o, i));
        if (e < least) least = e, best = static_cast<uint8_t>(c);
      }
      b.codes.as<uint8_t>()[o * b.in + i] = best;
    }
    sum += fed[static_cast<size_t>(o)];
    rounded += b.row_loss(o);
  }
  EXPECT_LT(sum, 0.8 * rounded);
}

TEST_P(LevelFeedback, EveryDescentLowersEveryRow) {
  const Bench b(grid_named(GetParam()), 9, 512);
  b.feed_back();
  std::vector<double> losses;
  for (int64_t o = 0; o < b.out; ++o) losses.push_back(b.row_loss(o));
  for (int pass = 0; pass < 3; ++pass) {
    descend_levels(b.ex, {.target = b.w, .h = b.h}, b.grid, b.view());
    for (int64_t o = 0; o < b.out; ++o) {
      const double now = b.row_loss(o);
      EXPECT_LT(now, losses[static_cast<size_t>(o)] * (pass == 0 ? 0.99 : 1 + 1e-6)) << "row " << o;
      losses[static_cast<size_t>(o)] = now;
    }
  }
  for (int64_t i = 0; i < b.scales.numel(); ++i) {  // still members of their set
    const float s = b.scales.as<float>()[i];
    if (b.grid.scale_set == ScaleSet::e8m0)
      EXPECT_EQ(representable_scale(s, DType::f8_e8m0), s);
    else if (b.grid.scale_set == ScaleSet::e4m3)
      EXPECT_EQ(representable_scale(s, DType::f8_e4m3), s);
    else
      EXPECT_TRUE(s == std::nearbyint(s) && s <= static_cast<float>(b.grid.most_scale)) << s;
  }
  for (int64_t i = 0; b.grid.moves_d && i < b.d.numel(); ++i)
    EXPECT_EQ(round_to_f16(b.d.as<float>()[i]), b.d.as<float>()[i]) << "d is stored as f16 once it has moved";
}

}  // namespace
}  // namespace fewbit
