// Targets that make some of the residual stream's error good: which linears have such, the sums, and what a run gains.
#include <cmath>

#include "src/calib/observe.h"
#include "src/calib/residual.h"
#include "src/model/synth/synth.h"
#include "src/quant/loop/pipeline.h"
#include "src/quant/plan/residual_aim.h"
#include "tests/quant/made_up_windows.h"
#include "tests/support/devices.h"
#include "tests/support/support.h"
#include "tests/support/tolerance.h"

namespace fewbit::test {
namespace {

Linears linear(Slot in, Slot out) {
  return {.in = in, .items = {{.name = "l", .out = out, .out_features = 8, .in_features = 8}}};
}

TEST(Residual, OnlyWhatIsAddedUnchanged) {
  const std::vector<BlockOp> plain = {linear(Slot::h, Slot::q), AddTo{.in = Slot::q, .out = Slot::x, .factor = 0.25f}};
  EXPECT_EQ(residual_factor(plain, 0), 0.25f);
  EXPECT_FALSE(residual_factor(plain, 1)) << "no linear";
  const std::vector<BlockOp> scaled = {linear(Slot::h, Slot::q), Scale{.slot = Slot::q, .name = "s"},
                                       AddTo{.in = Slot::q, .out = Slot::x}};
  EXPECT_FALSE(residual_factor(scaled, 0)) << "changed on the way";
  const std::vector<BlockOp> later = {linear(Slot::h, Slot::q), linear(Slot::h, Slot::k),
                                      AddTo{.in = Slot::q, .out = Slot::x}, AddTo{.in = Slot::k, .out = Slot::x}};
  EXPECT_TRUE(residual_factor(later, 0));
  EXPECT_FALSE(residual_factor(later, 1)) << "the stream is another when this is added";
  std::vector<BlockOp> two = plain;
  std::get<Linears>(two[0]).items.push_back(std::get<Linears>(two[0]).items[0]);
  EXPECT_FALSE(residual_factor(two, 0)) << "two linears share the input";
}

// The sums are those of all rows whatever the portions are in which they come, times the factor.
FEWBIT_DEVICE_TEST(Residual, SumsOfErrors) {
  constexpr int64_t kRows = 100, kIn = 24, kOut = 40;
  const Tensor x = random_normal(DType::f32, {kRows, kIn}, 3), full = random_normal(DType::f32, {kRows, kIn}, 4),
               error = random_normal(DType::f32, {kRows, kOut}, 5);
  const Tensor dx = ex.to_device(x), df = ex.to_device(full), de = ex.to_device(error);
  const auto of_portions = [&](int64_t portion) {
    InputSums sums(ex, {.in = kIn, .cross = true, .out = kOut, .error_factor = 0.5f}, {}, 1);
    for (int64_t r = 0; r < kRows; r += portion) {
      const int64_t end = std::min(kRows, r + portion);
      sums.add({dx.view().row_range(r, end), df.view().row_range(r, end), de.view().row_range(r, end)});
    }
    return ex.to_host(sums.finish().residual);
  };
  const Tensor got = of_portions(kRows);
  EXPECT_EQ(first_difference(got, of_portions(7)), "");
  const Tensor expected = Tensor::host(DType::f32, {kOut, kIn});
  for (int64_t o = 0; o < kOut; ++o)
    for (int64_t i = 0; i < kIn; ++i) {
      double sum = 0;
      for (int64_t r = 0; r < kRows; ++r)
        sum += static_cast<double>(error.as<float>()[r * kOut + o]) * x.as<float>()[r * kIn + i];
      expected.as<float>()[o * kIn + i] = static_cast<float>(sum / 2);
    }
  EXPECT_LT(relative_error(got, expected), tol::kF32Op);
}

std::vector<LinearRecord> records_of(const Checkpoint& c, const std::string& recipe, const std::filesystem::path& out) {
  Exec ex = Exec::cpu();
  const Windows windows = made_up_windows(c.spec, 8, 32);
  const QuantPlan plan = make_plan(c, {.base = parse_recipe(recipe), .tokens = 256, .seq_len = 32});
  QuantJob job;
  job.recipe = recipe;
  job.out = out;
  return run_pipeline(ex, c, plan, windows, job).linears;
}

// The first linears with an error in front of them are the first block's down: those before it see none, and have the
// codes of a run without. `quick` leaves the sums out unless it is told.
TEST(Residual, InThePipeline) {
  const TempDir dir;
  synthesize(dir / "tiny", {.preset = "tiny"}, {});
  const Checkpoint c = Checkpoint::open(dir / "tiny");
  const auto on = records_of(c, "gptq int3 g32", dir / "on"),
             off = records_of(c, "gptq int3 g32 targets=inputs", dir / "off");
  const auto quick = records_of(c, "gptq int3 g32 effort=quick", dir / "quick"),
             told = records_of(c, "gptq int3 g32 effort=quick targets=on", dir / "told");
  ASSERT_EQ(on.size(), off.size());
  size_t before = 0;
  while (before < on.size() && on[before].hash == off[before].hash) ++before;
  ASSERT_LT(before, on.size());
  EXPECT_NE(on[before].name.find("layers.0.mlp.down_proj"), std::string::npos) << on[before].name;
  size_t others = 0;
  for (size_t i = 0; i < quick.size(); ++i) others += quick[i].hash != told[i].hash;
  EXPECT_GT(others, 0u);
}

TEST(Residual, Recipes) {
  const auto printed = [](const char* recipe) { return resolve(parse_recipe(recipe)).str(); };
  EXPECT_EQ(printed("gptq int4 g128 targets=on"), "gptq int4 g128 sym");
  EXPECT_EQ(printed("gptq int4 g128 targets=inputs"), "gptq int4 g128 sym targets=inputs");
  EXPECT_EQ(printed("gptq int4 g128 effort=quick targets=inputs"), "gptq int4 g128 sym targets=inputs effort=quick");
  EXPECT_EQ(printed("gptq int4 g128 effort=quick targets=half"), "gptq int4 g128 sym effort=quick");
  EXPECT_EQ(printed("gptq int4 g128 effort=quick targets=on"), "gptq int4 g128 sym targets=on effort=quick");
  EXPECT_THROW(parse_recipe("gptq targets=some"), Error);
  EXPECT_THROW(resolve(parse_recipe("gptq effort=reference targets=inputs")), Error);
}

}  // namespace
}  // namespace fewbit::test
