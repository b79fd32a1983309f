// The expected cost of rounding inputs and weights: its value against rounding itself, its slope against differences,
// and that the way down ends below its start, with one scale for features that share one.
#include "src/quant/search/rounding_noise.h"

#include <cmath>

#include "kernels/products/bytes/quantize_rows.h"
#include "kernels/products/gemm.h"
#include "kernels/statistics/squared_error.h"
#include "src/quant/rounding.h"
#include "tests/support/support.h"
#include "tests/support/tolerance.h"

namespace fewbit::test {
namespace {

constexpr int64_t kTokens = 300, kIn = 96, kOut = 40;

QuantSpec w8a8(ActQuant activations, int64_t group = -1) {
  QuantSpec spec;
  spec.bits = 8;
  spec.group = group;
  spec.activations = activations;
  return spec;
}

// Columns of very different size, as inputs have them.
Tensor uneven(int64_t rows, uint64_t seed) {
  Tensor x = random_normal(DType::f32, {rows, kIn}, seed);
  for (int64_t i = 0; i < x.numel(); ++i) x.as<float>()[i] *= std::exp(static_cast<float>(i % kIn % 7) / 3);
  return x;
}

double energy_of(Exec& ex, ConstTensorView a, ConstTensorView b) {
  const Tensor rows = ex.alloc(DType::f64, {a.rows()});
  squared_error(ex, a, b, rows);
  return sum_of(ex, rows);
}

// The mean over the tokens of the squared error of x W^T when both are rounded after scaling by s.
double measured(ConstTensorView x, ConstTensorView w, const QuantSpec& spec, const Features& s) {
  Exec ex = Exec::cpu();
  Tensor xs = clone_host(x), ws = clone_host(w);
  for (int64_t i = 0; i < xs.numel(); ++i) xs.as<float>()[i] /= s[static_cast<size_t>(i % kIn)];
  for (int64_t i = 0; i < ws.numel(); ++i) ws.as<float>()[i] *= s[static_cast<size_t>(i % kIn)];
  const Tensor exact = ex.alloc(DType::f32, {x.rows(), w.rows()}), y = ex.alloc(DType::f32, exact.shape());
  gemm(ex, x, w, {}, exact);
  float most = 0;
  for (int64_t i = 0; i < xs.numel(); ++i) most = std::max(most, std::fabs(xs.as<float>()[i]));
  const Tensor values = values_of(ex, round_plain(ex, ws, {}, spec, ScaleRule::absmax), spec);
  if (const std::optional<RowQuant> rounding = input_quant(spec, most / 127))
    rounded_gemm(ex, xs, *rounding, values, {}, y);
  else
    gemm(ex, xs, values, {}, y);
  return energy_of(ex, exact, y) / static_cast<double>(x.rows());
}

TEST(RoundingNoise, IsWhatRoundingCosts) {
  Exec ex = Exec::cpu();
  const Tensor x = uneven(kTokens, 1);
  Features s(kIn);
  for (size_t j = 0; j < s.size(); ++j) s[j] = std::exp(static_cast<float>(j % 5) / 4);
  for (const QuantSpec& spec :
       {w8a8(ActQuant::token), w8a8(ActQuant::tensor), w8a8(ActQuant::none), w8a8(ActQuant::none, 32)}) {
    const Tensor w = random_normal(DType::f32, {kOut, kIn}, 2);
    std::vector<NoisyLinear> linears;
    linears.push_back({.rows = clone_host(w), .energy = 1, .spec = spec});
    std::vector<double> slope;
    EXPECT_NEAR(rounding_noise(ex, x, linears, s, slope) / measured(x, w, spec, s), 1, tol::kExpectedNoise)
        << spec.str();
  }
}

TEST(RoundingNoise, SlopesAreThoseOfDifferences) {
  Exec ex = Exec::cpu();
  const Tensor x = uneven(kTokens, 3);
  for (const ActQuant activations : {ActQuant::token, ActQuant::tensor, ActQuant::none}) {
    std::vector<NoisyLinear> linears;
    linears.push_back({.rows = random_normal(DType::f32, {kOut, kIn}, 4), .energy = 2, .spec = w8a8(activations)});
    linears.push_back({.rows = random_normal(DType::f32, {kOut, kIn}, 5), .energy = 3, .spec = w8a8(activations, 32)});
    Features s(kIn);
    for (size_t j = 0; j < s.size(); ++j) s[j] = std::exp(static_cast<float>(j % 11) / 9);
    std::vector<double> slope, unused;
    const double e = rounding_noise(ex, x, linears, s, slope);
    // Along a direction, so that single peaks that change hands weigh little.
    constexpr double kStep = 1e-4;
    Features up(s), down(s);
    double expected = 0, size = 0;
    for (size_t j = 0; j < s.size(); ++j) {
      const double d = std::cos(static_cast<double>(j));
      up[j] *= static_cast<float>(std::exp(kStep * d));
      down[j] *= static_cast<float>(std::exp(-kStep * d));
      expected += d * slope[j];
      size += slope[j] * slope[j];
    }
    const double found =
        (rounding_noise(ex, x, linears, up, unused) - rounding_noise(ex, x, linears, down, unused)) / (2 * kStep);
    EXPECT_GT(size, 0);
    EXPECT_NEAR(found, expected, tol::kSlope * e);
  }
}

TEST(RoundingNoise, TheWayDownEndsBelowItsStart) {
  Exec ex = Exec::cpu();
  Absorber a;
  a.features = kIn / 3;
  a.head_dim = 16;
  a.repeat = 3;
  const Tensor x = uneven(kTokens, 6);
  std::vector<NoisyLinear> linears;
  linears.push_back({.rows = random_normal(DType::f32, {kOut, kIn}, 7), .energy = 1, .spec = w8a8(ActQuant::token)});
  const Features start(static_cast<size_t>(a.features), 1.f), end = least_noise(ex, a, x, linears, start);
  std::vector<double> slope;
  const auto noise = [&](const Features& s) {
    return rounding_noise(ex, x, linears, by_consumer_feature(a, s), slope);
  };
  EXPECT_LT(noise(end), 0.9 * noise(start));
  EXPECT_EQ(least_noise(ex, a, x, linears, start), end);
}

}  // namespace
}  // namespace fewbit::test
