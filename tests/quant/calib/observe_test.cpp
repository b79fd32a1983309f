// Statistics of an input that its linears round to 8 bits.
#include "src/calib/observe.h"

#include <cmath>

#include "kernels/statistics/gram.h"
#include "tests/kernels/quantize/quantizer_fixture.h"
#include "tests/support/devices.h"

namespace fewbit {
namespace {

using namespace test;

FEWBIT_DEVICE_TEST(Observe, SumsAreThoseOfTheRoundedInput) {
  const Tensor x = ex.to_device(random_normal(DType::f32, {50, 24}, 1)),
               full = ex.to_device(random_normal(DType::f32, {50, 24}, 2));
  const InputStats s = observe_input(ex, x, full, {.activations = ActQuant::token});
  const Tensor rounded = ex.alloc(DType::f32, {50, 24}), g = ex.alloc_zeros(DType::f32, {24, 24}),
               d = ex.alloc_zeros(DType::f32, {24, 24});
  round_rows(ex, x, {}, rounded);
  gram(ex, rounded, g);
  cross_gram(ex, full, rounded, d);
  EXPECT_EQ(first_difference(ex.to_host(s.gram), ex.to_host(g)), "");
  EXPECT_EQ(first_difference(ex.to_host(s.cross), ex.to_host(d)), "") << "the unquantized stream is not rounded";
  EXPECT_EQ(first_difference(ex.to_host(s.sample), ex.to_host(x)), "");
  EXPECT_TRUE(observe_input(ex, x, {}, {}).sample.empty());
}

FEWBIT_DEVICE_TEST(Observe, StaticScalesReachTheLargestOrThePercentile) {
  Tensor x = Tensor::host(DType::f32, {10, 100});
  for (int64_t i = 0; i < 1000; ++i) x.as<float>()[i] = (i % 2 ? -1.f : 1.f) * static_cast<float>(i);
  const Tensor dx = ex.to_device(x);
  InputRounding r{.activations = ActQuant::tensor};
  EXPECT_FLOAT_EQ(observe_input(ex, dx, {}, r).input_scale, 999.f / 127);
  r.percentile = 90;
  EXPECT_FLOAT_EQ(observe_input(ex, dx, {}, r).input_scale, 899.f / 127);
  r = {.activations = ActQuant::tensor, .rows = {.codes = DType::f8_e4m3}};
  EXPECT_FLOAT_EQ(observe_input(ex, dx, {}, r).input_scale, 999.f / 448);
  const Tensor zeros = ex.alloc_zeros(DType::f32, {4, 8});
  EXPECT_EQ(observe_input(ex, zeros, {}, r).input_scale, 1.f) << "a scale is never 0";
}

}  // namespace
}  // namespace fewbit
