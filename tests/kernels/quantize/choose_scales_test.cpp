#include "kernels/quantize/choose_scales.h"

#include "kernels/grids/integer_grid.h"
#include "tests/kernels/quantize/quantizer_fixture.h"
#include "tests/support/devices.h"

namespace fewbit {
namespace {

using namespace test;

struct Chosen {
  Tensor scales{}, zeros{};
};

Chosen choose(Exec& ex, const Tensor& w, const Tensor& h, int64_t group, const ScaleSearch& s) {
  const Shape shape{w.rows(), (w.cols() + group - 1) / group};
  const Tensor dw = ex.to_device(w), dh = h ? ex.to_device(h) : Tensor();
  const Tensor scales = poisoned(ex, DType::f32, shape);
  const Tensor zeros = s.symmetric ? Tensor() : poisoned(ex, DType::u8, shape);
  choose_scales(ex, dw, dh, group, s, scales, zeros);
  return {ex.to_host(scales), s.symmetric ? Tensor() : ex.to_host(zeros)};
}

double weighted_error(const float* w, const float* h, int64_t n, float scale, int zero, int bits) {
  double sum = 0;
  for (int64_t i = 0; i < n; ++i) {
    const double level = std::min(std::max(std::nearbyint(w[i] / scale), -static_cast<float>(zero)),
                                  static_cast<float>((1 << bits) - 1 - zero));
    sum += (h ? h[i] : 1.0) * (w[i] - level * scale) * (w[i] - level * scale);
  }
  return sum;
}

FEWBIT_DEVICE_TEST(ChooseScales, TheAbsmaxRuleIsThePublishedOne) {
  const Tensor w = host_tensor<float>(DType::f32, {1, 4}, {3.f, -7.5f, 1.f, 6.f});
  ScaleSearch s = default_search(4, true, ScaleRule::absmax);
  s.scale_dtype = DType::f32;
  EXPECT_EQ(choose(ex, w, {}, 4, s).scales.as<float>()[0], 1.f);
  s = default_search(4, false, ScaleRule::absmax);
  s.scale_dtype = DType::f32;
  const Chosen c = choose(ex, w, {}, 4, s);
  EXPECT_FLOAT_EQ(c.scales.as<float>()[0], 13.5f / 15);
  EXPECT_EQ(c.zeros.as<uint8_t>()[0], 8);  // 7.5 / 0.9 = 8.33
  // The range always holds 0.
  const Chosen positive = choose(ex, host_tensor<float>(DType::f32, {1, 2}, {4.f, 15.f}), {}, 2, s);
  EXPECT_EQ(positive.scales.as<float>()[0], 1.f);
  EXPECT_EQ(positive.zeros.as<uint8_t>()[0], 0);
}

FEWBIT_DEVICE_TEST(ChooseScales, AnAllZeroGroupGetsScaleOne) {
  for (const bool symmetric : {true, false})
    for (const ScaleRule rule : {ScaleRule::absmax, ScaleRule::diag_grid}) {
      const Chosen c = choose(ex, Tensor::host_zeros(DType::f32, {2, 8}), {}, 8, default_search(4, symmetric, rule));
      EXPECT_EQ(std::fabs(c.scales.as<float>()[1]), 1.f);
      if (!symmetric) {
        EXPECT_EQ(c.zeros.as<uint8_t>()[1], 0);
      }
    }
}

FEWBIT_DEVICE_TEST(ChooseScales, TheSearchFindsTheBestOfItsList) {
  for (const int bits : {2, 3, 4, 8}) {
    const int64_t out = 5, in = 200, group = 64;  // the last group holds 8 columns
    const Tensor w = random_normal(DType::f32, {out, in}, 1, 0.02f);
    Tensor h = random_normal(DType::f32, {in}, 2);
    for (int64_t i = 0; i < in; ++i) h.as<float>()[i] = h.as<float>()[i] * h.as<float>()[i] + 0.01f;
    const ScaleSearch s = default_search(bits, true, ScaleRule::diag_grid);
    EXPECT_EQ(s.lo, bits >= 4 ? 0.56f : 0.40f);
    const Chosen c = choose(ex, w, h, group, s);
    for (int64_t o = 0; o < out; ++o)
      for (int64_t g = 0; g < 4; ++g) {
        const float *wg = w.as<float>() + o * in + g * group, *hg = h.as<float>() + g * group;
        const int64_t n = std::min(group, in - g * group);
        float top = 0;
        for (int64_t i = 0; i < n; ++i) top = std::max(top, std::fabs(wg[i]));
        double best = std::numeric_limits<double>::infinity();
        for (double f = s.lo; f < 1.101; f += 0.02)
          for (const float sign : {1.f, -1.f}) {
            const float scale =
                sign *
                representable_scale(static_cast<float>(f) * top / static_cast<float>(1 << (bits - 1)), DType::f16);
            best = std::min(best, weighted_error(wg, hg, n, scale, 1 << (bits - 1), bits));
          }
        const float got = c.scales.as<float>()[o * 4 + g];
        EXPECT_EQ(got, representable_scale(got, DType::f16));
        EXPECT_LT(weighted_error(wg, hg, n, got, 1 << (bits - 1), bits), best * (1 + tol::kLossIdentity)) << bits;
      }
  }
}

FEWBIT_DEVICE_TEST(ChooseScales, NegativeScalesAreFoundWhereTheyHelp) {
  // +8 can only be coded exactly with a negative scale: levels are -8..7.
  const Tensor w = host_tensor<float>(DType::f32, {1, 4}, {8.f, -7.f, 3.f, 1.f});
  EXPECT_EQ(choose(ex, w, {}, 4, default_search(4, true, ScaleRule::diag_grid)).scales.as<float>()[0], -1.f);
}

FEWBIT_DEVICE_TEST(ChooseScales, SearchedIsNotWorseThanPlainOnAsymmetricGroups) {
  const Tensor w = random_normal(DType::f32, {3, 128}, 9, 0.1f);
  const Chosen plain = choose(ex, w, {}, 128, default_search(4, false, ScaleRule::absmax));
  const Chosen found = choose(ex, w, {}, 128, default_search(4, false, ScaleRule::diag_grid));
  for (int64_t o = 0; o < 3; ++o) {
    const auto error = [&](const Chosen& c) {
      return weighted_error(w.as<float>() + o * 128, nullptr, 128, c.scales.as<float>()[o], c.zeros.as<uint8_t>()[o],
                            4);
    };
    EXPECT_LT(error(found), error(plain));
  }
}

TEST(ChooseScales, CudaEqualsTheCpuToTheBit) {
  FEWBIT_NEEDS_GPU();
  Exec cpu = Exec::cpu(), gpu = Exec::cuda(0);
  const Tensor w = random_normal(DType::f32, {37, 300}, 12, 0.03f);
  Tensor h = random_normal(DType::f32, {300}, 13);
  for (int64_t i = 0; i < 300; ++i) h.as<float>()[i] *= h.as<float>()[i];
  for (const int64_t group : {32, 48, 128, 300})
    for (const int bits : {2, 3, 4, 5, 8})
      for (const bool symmetric : {true, false})
        for (const DType dtype : {DType::f16, DType::bf16, DType::f32}) {
          ScaleSearch s = default_search(bits, symmetric, ScaleRule::diag_grid);
          s.scale_dtype = dtype;
          const Chosen a = choose(cpu, w, h, group, s), b = choose(gpu, w, h, group, s);
          EXPECT_EQ(first_difference(a.scales, b.scales), "") << group << " " << bits;
          if (!symmetric) {
            EXPECT_EQ(first_difference(a.zeros, b.zeros), "") << group << " " << bits;
          }
        }
}

}  // namespace
}  // namespace fewbit
