#include <cmath>

#include "kernels/model/add.h"
#include "kernels/model/gated_act.h"
#include "tests/kernels/op_test.h"

namespace fewbit::test {
namespace {

FEWBIT_DEVICE_TEST(GatedAct, MatchesBothFormulas) {
  for (const int64_t n : kSizes)
    for (const DType dtype : kComputeTypes)
      for (const ActKind act : {ActKind::silu, ActKind::gelu_tanh}) {
        const Tensor gate = random_normal(dtype, {3, n}, 1, 4.f), up = random_normal(dtype, {3, n}, 2);
        const Tensor out = poisoned(ex, dtype, {3, n});
        gated_act(ex, ex.to_device(gate), ex.to_device(up), act, out);
        const std::vector<double> g = doubles(gate), u = doubles(up);
        std::vector<double> expected(g.size());
        for (size_t i = 0; i < g.size(); ++i) {
          const double inner = std::sqrt(2 / 3.14159265358979323846) * (g[i] + 0.044715 * g[i] * g[i] * g[i]);
          expected[i] =
              u[i] * (act == ActKind::silu ? g[i] / (1 + std::exp(-g[i])) : 0.5 * g[i] * (1 + std::tanh(inner)));
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
    for (const DType dtype : kComputeTypes) {
      const Tensor h = random_normal(dtype, {2, n}, 1), x = random_normal(dtype, {2, n}, 2), y = ex.to_device(x);
      add(ex, ex.to_device(h), y);
      std::vector<double> expected = doubles(x);
      const std::vector<double> v = doubles(h);
      for (size_t i = 0; i < v.size(); ++i) expected[i] += v[i];
      EXPECT_LE(error_of(ex, y, expected), op_tolerance(dtype)) << name_of(dtype) << " " << n;
    }
}

}  // namespace
}  // namespace fewbit::test
