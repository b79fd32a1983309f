// 4-bit floats: the published rules, that a search only ever lowers the error, and the same bits on both devices.
#include "kernels/quantize/round_fp4.h"

#include <cmath>
#include <limits>

#include "src/core/quantized_linear.h"
#include "tests/kernels/op_test.h"

namespace fewbit::test {
namespace {

constexpr int64_t kOut = 7, kIn = 192;

struct Rounded {
  Tensor codes, scales;
};

Rounded rounded(Exec& ex, const Tensor& w, const QuantSpec& spec, float global, bool search, const Tensor& h = {}) {
  const Tensor codes = poisoned(ex, DType::u8, w.shape()),
               scales = poisoned(ex, DType::f32, {w.rows(), w.cols() / spec.group});
  const Tensor weight = ex.to_device(w), importance = h.empty() ? Tensor() : ex.to_device(h);
  round_fp4(ex,
            {.w = weight,
             .h = importance,
             .group = spec.group,
             .scale_dtype = spec.scale_dtype,
             .global = global,
             .search = search},
            codes, scales);
  return {ex.to_host(codes), ex.to_host(scales)};
}

// The h-weighted squared error of one group.
double error_of_group(const Rounded& r, const Tensor& w, const QuantSpec& spec, float global, int64_t at,
                      const Tensor& h = {}) {
  double error = 0;
  for (int64_t i = at * spec.group; i < (at + 1) * spec.group; ++i) {
    const double value =
        static_cast<double>(f4_e2m1_to_f32(r.codes.as<uint8_t>()[i])) * r.scales.as<float>()[at] * global;
    const double d = w.as<float>()[i] - value;
    error += d * d * (h.empty() ? 1.0 : h.as<float>()[i % w.cols()]);
  }
  return error;
}

FEWBIT_DEVICE_TEST(RoundFp4, PublishedRules) {
  const Tensor w = random_normal(DType::f32, {kOut, kIn}, 1, 0.05f);
  const float global = 0x1p-12f;
  for (const QuantSpec& spec : {kNvfp4, kMxfp4}) {
    const float g = spec.two_level() ? global : 1.f;
    const Rounded r = rounded(ex, w, spec, g, false);
    for (int64_t k = 0; k < r.scales.numel(); ++k) {
      float absmax = 0;
      for (int64_t i = k * spec.group; i < (k + 1) * spec.group; ++i)
        absmax = std::max(absmax, std::fabs(w.as<float>()[i]));
      const float power = std::exp2(std::floor(std::log2(absmax)));
      const float expected = spec.two_level() ? representable_scale(absmax / 6.f / g, DType::f8_e4m3)
                                              : (absmax / power < 1.75f ? power : 2 * power) / 4.f;
      ASSERT_EQ(r.scales.as<float>()[k], expected) << spec.str() << " group " << k;
      for (int64_t i = k * spec.group; i < (k + 1) * spec.group; ++i)
        ASSERT_EQ(r.codes.as<uint8_t>()[i], f32_to_f4_e2m1(w.as<float>()[i] / (expected * g))) << i;
    }
  }
}

FEWBIT_DEVICE_TEST(RoundFp4, ASearchLowersTheErrorOfEveryGroup) {
  const Tensor w = random_normal(DType::f32, {kOut, kIn}, 2, 0.05f);
  Tensor h = random_normal(DType::f32, {kIn}, 3);
  for (int64_t i = 0; i < kIn; ++i) h.as<float>()[i] = std::exp(h.as<float>()[i]);
  for (const QuantSpec& spec : {kNvfp4, kMxfp4}) {
    const float g = spec.two_level() ? 0x1p-12f : 1.f;
    const Rounded plain = rounded(ex, w, spec, g, false), searched = rounded(ex, w, spec, g, true, h);
    double before = 0, after = 0;
    for (int64_t k = 0; k < plain.scales.numel(); ++k) {
      const double p = error_of_group(plain, w, spec, g, k, h), s = error_of_group(searched, w, spec, g, k, h);
      EXPECT_LE(s, p * (1 + tol::kF32Op)) << spec.str() << " group " << k;
      before += p;
      after += s;
      const float scale = searched.scales.as<float>()[k];
      EXPECT_EQ(representable_scale(scale, spec.scale_dtype), scale);
    }
    EXPECT_LT(after, before) << spec.str();
  }
}

FEWBIT_DEVICE_TEST(RoundFp4, ZerosHugeAndTinyWeights) {
  Tensor w = Tensor::host_zeros(DType::f32, {3, 32});
  for (int64_t i = 0; i < 32; ++i) w.as<float>()[32 + i] = i % 2 ? 1e30f : -1e30f;
  for (int64_t i = 0; i < 32; ++i) w.as<float>()[64 + i] = i % 2 ? 1e-30f : -1e-30f;
  for (const QuantSpec& spec : {kNvfp4, kMxfp4})
    for (const bool search : {false, true}) {
      const Rounded r = rounded(ex, w, spec, 1.f, search);
      const int64_t groups = 32 / spec.group;
      EXPECT_EQ(r.scales.as<float>()[0], 1.f);
      EXPECT_EQ(r.codes.as<uint8_t>()[31], 0);
      EXPECT_GE(r.codes.as<uint8_t>()[33], 5);  // 3, 4 or 6
      EXPECT_EQ(r.codes.as<uint8_t>()[32], r.codes.as<uint8_t>()[33] | 8);
      if (!spec.two_level()) continue;
      EXPECT_EQ(r.scales.as<float>()[groups], 448.f);
      EXPECT_EQ(r.codes.as<uint8_t>()[65], 0);
      if (!search) {
        EXPECT_EQ(r.scales.as<float>()[2 * groups], 0x1p-9f);
      }
    }
}

TEST(RoundFp4, CudaChoosesTheSameBits) {
  FEWBIT_NEEDS_GPU();
  Exec cpu = Exec::cpu(), cuda = Exec::cuda(0);
  const Tensor w = random_normal(DType::f32, {64, 1024}, 4, 0.02f);
  for (const QuantSpec& spec : {kNvfp4, kMxfp4})
    for (const bool search : {false, true}) {
      const float g = spec.two_level() ? 0x1p-14f : 1.f;
      const Rounded a = rounded(cpu, w, spec, g, search), b = rounded(cuda, w, spec, g, search);
      EXPECT_EQ(first_difference(a.codes, b.codes), "") << spec.str();
      EXPECT_EQ(first_difference(a.scales, b.scales), "") << spec.str();
    }
}

}  // namespace
}  // namespace fewbit::test
