#include <algorithm>
#include <cmath>

#include "kernels/model/add.h"
#include "kernels/model/gated_act.h"
#include "kernels/model/sigmoid_gate.h"
#include "tests/kernels/op_test.h"

namespace fewbit::test {
namespace {

double activated(ActKind act, double g) {
  const double inner = std::sqrt(2 / 3.14159265358979323846) * (g + 0.044715 * g * g * g);
  switch (act) {
    case ActKind::silu:
      return g / (1 + std::exp(-g));
    case ActKind::gelu_tanh:
      return 0.5 * g * (1 + std::tanh(inner));
    case ActKind::relu:
      return std::max(g, 0.0);
    case ActKind::none:
      break;
  }
  return g;
}

FEWBIT_DEVICE_TEST(GatedAct, MatchesItsFormulas) {
  for (const int64_t n : kSizes)
    for (const DType dtype : kComputeTypes)
      for (const ActKind act : {ActKind::silu, ActKind::gelu_tanh, ActKind::relu, ActKind::none}) {
        const Tensor gate = random_normal(dtype, {3, n}, 1, 4.f), up = random_normal(dtype, {3, n}, 2);
        const Tensor out = poisoned(ex, dtype, {3, n});
        gated_act(ex, ex.to_device(gate), ex.to_device(up), act, out);
        const std::vector<double> g = doubles(gate), u = doubles(up);
        std::vector<double> expected(g.size());
        for (size_t i = 0; i < g.size(); ++i) expected[i] = u[i] * activated(act, g[i]);
        EXPECT_LE(error_of(ex, out, expected), op_tolerance(dtype)) << name_of(dtype) << " " << n;
      }
}

FEWBIT_DEVICE_TEST(GatedAct, OfOneInputIsSquaredRelu) {
  const Tensor x = random_normal(DType::f32, {3, 100}, 1), y = ex.to_device(x);
  gated_act(ex, y, y, ActKind::relu, y);
  std::vector<double> expected = doubles(x);
  for (double& v : expected) v = v > 0 ? v * v : 0;
  EXPECT_LE(error_of(ex, y, expected), tol::kF32Op);
}

FEWBIT_DEVICE_TEST(ClampedSwiglu, MatchesItsFormula) {
  for (const int64_t n : kSizes)
    for (const DType dtype : kComputeTypes) {
      const Tensor gate = random_normal(dtype, {3, n}, 1, 4.f), up = random_normal(dtype, {3, n}, 2, 4.f);
      const Tensor out = poisoned(ex, dtype, {3, n});
      clamped_swiglu(ex, ex.to_device(gate), ex.to_device(up), {2.f}, out);
      const std::vector<double> g = doubles(gate), u = doubles(up);
      std::vector<double> expected(g.size());
      for (size_t i = 0; i < g.size(); ++i) {
        const double low = std::min(g[i], 2.0);
        expected[i] = (std::clamp(u[i], -2.0, 2.0) + 1) * low / (1 + std::exp(-1.702 * low));
      }
      EXPECT_LE(error_of(ex, out, expected), op_tolerance(dtype)) << name_of(dtype) << " " << n;
      clamped_swiglu(ex, ex.to_device(gate), ex.to_device(up), {.limit = 2.f, .slope = 1.f, .shift = 0.f}, out);
      for (size_t i = 0; i < g.size(); ++i) {
        const double low = std::min(g[i], 2.0);
        expected[i] = std::clamp(u[i], -2.0, 2.0) * low / (1 + std::exp(-low));
      }
      EXPECT_LE(error_of(ex, out, expected), op_tolerance(dtype)) << name_of(dtype) << " " << n;
    }
}

FEWBIT_DEVICE_TEST(GatedAct, InPlaceAndFarOut) {
  const float values[] = {-200.f, -90.f, -1e-20f, 0.f, 90.f, 200.f};
  const Tensor gate = Tensor::host_from<float>(DType::f32, {6}, values), ones = Tensor::host(DType::f32, {6});
  for (int i = 0; i < 6; ++i) ones.as<float>()[i] = 1;
  const Tensor out = ex.to_device(gate);
  gated_act(ex, out, ex.to_device(ones), ActKind::silu, out);
  const Tensor found = ex.to_host(out);
  EXPECT_NEAR(found.as<float>()[0], 0, 1e-30);
  EXPECT_NEAR(found.as<float>()[1], 0, 1e-30);
  EXPECT_EQ(found.as<float>()[3], 0.f);
  EXPECT_EQ(found.as<float>()[4], 90.f);
  EXPECT_EQ(found.as<float>()[5], 200.f);
}

FEWBIT_DEVICE_TEST(Add, AddsInPlace) {
  for (const int64_t n : kSizes)
    for (const DType dtype : kComputeTypes)
      for (const float factor : {1.f, 0.22f}) {
        const Tensor h = random_normal(dtype, {2, n}, 1), x = random_normal(dtype, {2, n}, 2), y = ex.to_device(x);
        add(ex, ex.to_device(h), y, factor);
        std::vector<double> expected = doubles(x);
        const std::vector<double> v = doubles(h);
        for (size_t i = 0; i < v.size(); ++i) expected[i] += factor * v[i];
        EXPECT_LE(error_of(ex, y, expected), op_tolerance(dtype)) << name_of(dtype) << " " << n << " " << factor;
      }
}

FEWBIT_DEVICE_TEST(ScaleBy, ScalesInPlace) {
  for (const int64_t n : kSizes)
    for (const DType dtype : kComputeTypes) {
      const Tensor x = random_normal(dtype, {2, n}, 2), y = ex.to_device(x);
      const float factor[] = {0.37f};
      scale_by(ex, ex.to_device(Tensor::host_from<float>(DType::f32, {1}, factor)), y);
      std::vector<double> expected = doubles(x);
      for (double& v : expected) v *= factor[0];
      EXPECT_LE(error_of(ex, y, expected), op_tolerance(dtype)) << name_of(dtype) << " " << n;
    }
}

FEWBIT_DEVICE_TEST(ScaleBy, AFactorForEveryColumn) {
  for (const int64_t n : kSizes)
    for (const DType dtype : kComputeTypes) {
      const Tensor x = random_normal(dtype, {3, n}, 2), factors = random_normal(DType::f32, {n}, 3),
                   y = ex.to_device(x);
      scale_by(ex, ex.to_device(factors), y);
      std::vector<double> expected = doubles(x);
      for (size_t i = 0; i < expected.size(); ++i) expected[i] *= factors.as<float>()[i % static_cast<size_t>(n)];
      EXPECT_LE(error_of(ex, y, expected), op_tolerance(dtype)) << name_of(dtype) << " " << n;
    }
}

FEWBIT_DEVICE_TEST(SigmoidGate, OneForEachFeatureOrForARow) {
  for (const int64_t n : kSizes)
    for (const DType dtype : kComputeTypes)
      for (const int64_t gates : {int64_t{1}, n}) {
        const Tensor gate = random_normal(dtype, {3, gates}, 1, 4.f), x = random_normal(dtype, {3, n}, 2);
        const Tensor out = poisoned(ex, dtype, {3, n});
        sigmoid_gate(ex, ex.to_device(gate), ex.to_device(x), out);
        const std::vector<double> g = doubles(gate);
        std::vector<double> expected = doubles(x);
        for (size_t i = 0; i < expected.size(); ++i) {
          const size_t row = i / static_cast<size_t>(n), column = i % static_cast<size_t>(n);
          expected[i] /= 1 + std::exp(-g[gates == 1 ? row : row * static_cast<size_t>(n) + column]);
        }
        EXPECT_LE(error_of(ex, out, expected), op_tolerance(dtype)) << name_of(dtype) << " " << n << " " << gates;
      }
}

}  // namespace
}  // namespace fewbit::test
