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
  const InputStats s = observe_input(ex, {x, full}, {.activations = ActQuant::token});
  const Tensor rounded = ex.alloc(DType::f32, {50, 24}), g = ex.alloc_zeros(DType::f32, {24, 24}),
               d = ex.alloc_zeros(DType::f32, {24, 24});
  round_rows(ex, x, {}, rounded);
  gram(ex, rounded, g);
  cross_gram(ex, full, rounded, d);
  EXPECT_EQ(first_difference(ex.to_host(s.gram), ex.to_host(g)), "");
  EXPECT_EQ(first_difference(ex.to_host(s.cross), ex.to_host(d)), "") << "the unquantized stream is not rounded";
  EXPECT_EQ(first_difference(ex.to_host(s.sample), ex.to_host(x)), "");
  EXPECT_TRUE(observe_input(ex, {x}, {}).sample.empty());
}

FEWBIT_DEVICE_TEST(Observe, StaticScalesReachTheLargestOrThePercentile) {
  Tensor x = Tensor::host(DType::f32, {10, 100});
  for (int64_t i = 0; i < 1000; ++i) x.as<float>()[i] = (i % 2 ? -1.f : 1.f) * static_cast<float>(i);
  const Tensor dx = ex.to_device(x);
  InputRounding r{.activations = ActQuant::tensor};
  EXPECT_FLOAT_EQ(observe_input(ex, {dx}, r).input_scale, 999.f / 127);
  r.percentile = 90;
  EXPECT_FLOAT_EQ(observe_input(ex, {dx}, r).input_scale, 899.f / 127);
  r = {.activations = ActQuant::tensor, .rows = {.codes = DType::f8_e4m3}};
  EXPECT_FLOAT_EQ(observe_input(ex, {dx}, r).input_scale, 999.f / 448);
  const Tensor zeros = ex.alloc_zeros(DType::f32, {4, 8});
  EXPECT_EQ(observe_input(ex, {zeros}, r).input_scale, 1.f) << "a scale is never 0";
}

// Runs of 2,048 rows at even distances, whatever the chunks are that rows come in.
TEST(Observe, SpreadRunsDoNotDependOnTheChunks) {
  constexpr int64_t kRows = 20000, kMost = 5000;  // every fourth run: rows 0, 8192 and 16384 begin one
  const Tensor x = Tensor::host(DType::f32, {kRows, 1});
  for (int64_t i = 0; i < kRows; ++i) x.as<float>()[i] = static_cast<float>(i);
  const auto picked = [&](int64_t tokens, int64_t chunk) {
    std::vector<float> rows;
    SpreadRuns runs(tokens, kMost);
    for (int64_t r = 0; r < kRows; r += chunk) {
      const ConstTensorView part = x.view().row_range(r, std::min(r + chunk, kRows));
      runs.pick({part, part}, [&](const InputRows& some) {
        EXPECT_EQ(some.x.data, some.full.data);
        rows.insert(rows.end(), some.x.as<float>(), some.x.as<float>() + some.x.rows());
      });
    }
    return rows;
  };
  std::vector<float> expected;
  for (const int64_t begin : {0, 8192, 16384})
    for (int64_t i = begin; i < std::min(begin + 2048, kRows); ++i) expected.push_back(static_cast<float>(i));
  for (const int64_t chunk : {kRows, int64_t{8192}, int64_t{2048}, int64_t{1000}, int64_t{3001}})
    EXPECT_EQ(picked(kRows, chunk), expected) << chunk;
  EXPECT_EQ(picked(kMost, 1000).size(), static_cast<size_t>(kRows)) << "few tokens are taken whole";
}

// A static scale is that of all rows, the sums are those of some.
FEWBIT_DEVICE_TEST(Observe, AScaleSeesRowsThatTheSumsLeaveOut) {
  constexpr int64_t kRows = 10000;
  const Tensor x = random_normal(DType::f32, {kRows, 16}, 3);
  x.as<float>()[16 * 5000] = 100;  // in the third run, of which the sums have the first, fourth ...
  const Tensor dx = ex.to_device(x);
  const EachChunk each = [&](const auto& show) { show({dx}); };
  const InputRounding tensor{.activations = ActQuant::tensor};
  const InputStats s = observe_input(ex, each, kRows, {.in = 16}, tensor, one_process(), 4000);
  EXPECT_FLOAT_EQ(s.input_scale, 100.f / 127);
  EXPECT_EQ(s.tokens, 2 * 2048);
  const Tensor all = ex.to_host(observe_input(ex, each, kRows, {.in = 16}, tensor).gram), some = ex.to_host(s.gram);
  EXPECT_LT(some.as<float>()[0], all.as<float>()[0] - 9000);
}

}  // namespace
}  // namespace fewbit
