// The curvature of outputs: draws that have the Fisher information's covariance, rows that take back what the rows
// before them cost, and a whole run.
#include <cmath>

#include "kernels/exec/upload.h"
#include "kernels/statistics/fisher_draw.h"
#include "src/core/rng.h"
#include "src/model/synth/synth.h"
#include "src/quant/loop/pipeline.h"
#include "src/quant/methods/coupled_rows.h"
#include "tests/quant/made_up_windows.h"
#include "tests/support/devices.h"
#include "tests/support/support.h"

namespace fewbit::test {
namespace {

// Mean and covariance of many draws against diag(p) - p p^T.
FEWBIT_DEVICE_TEST(FisherDraw, HasTheCovarianceOfTheDistribution) {
  constexpr int64_t kVocab = 5, kDraws = 20000;
  constexpr double kNoise = 0.02;  // some three deviations of a mean of so many draws
  const std::vector<float> logits = {0.3f, -1.2f, 1.5f, 0.f, -0.4f};
  std::vector<float> rows;
  for (int64_t r = 0; r < kDraws; ++r) rows.insert(rows.end(), logits.begin(), logits.end());
  const Tensor g = ex.alloc(DType::f32, {kDraws, kVocab});
  ex.copy(upload(ex, rows).view().reshaped({kDraws, kVocab}), g);
  fisher_draw(ex, 0, 7, 0, g);
  const Tensor host = ex.to_host(g);
  double sum = 0;
  for (const float z : logits) sum += std::exp(z);
  for (int64_t a = 0; a < kVocab; ++a)
    for (int64_t b = 0; b < kVocab; ++b) {
      double both = 0;
      for (int64_t r = 0; r < kDraws; ++r)
        both += static_cast<double>(host.as<float>()[r * kVocab + a]) * host.as<float>()[r * kVocab + b];
      const double pa = std::exp(logits[static_cast<size_t>(a)]) / sum,
                   pb = std::exp(logits[static_cast<size_t>(b)]) / sum;
      EXPECT_NEAR(both / kDraws, (a == b ? pa : 0) - pa * pb, kNoise) << a << ", " << b;
    }
}

// Symmetric and positive, with neighbours that pull the same way.
std::vector<float> coupled_matrix(int64_t n) {
  std::vector<float> h(static_cast<size_t>(n * n));
  for (int64_t i = 0; i < n; ++i)
    for (int64_t j = 0; j < n; ++j)
      h[static_cast<size_t>(i * n + j)] = std::pow(0.9f, static_cast<float>(std::abs(i - j)));
  return h;
}

// Rounding to whole numbers, one row after the other: errors under H are smaller than those of rounding alone, every
// row comes once, and what walk() calls its place is where it came.
FEWBIT_DEVICE_TEST(CoupledRows, ErrorsTogetherAreSmaller) {
  constexpr int64_t kOut = 70, kIn = 40;
  const std::vector<float> h = coupled_matrix(kOut);
  OutputCurvature curvature{.tokens = int64_t{1} << 24};  // trusted whole
  curvature.sets.push_back(ex.alloc(DType::f32, {kOut, kOut}));
  ex.copy(upload(ex, h).view().reshaped({kOut, kOut}), curvature.sets[0]);
  std::optional<CoupledRows> rows = CoupledRows::of(ex, curvature, kOut, true);
  ASSERT_TRUE(rows);
  std::vector<float> w(kOut * kIn);
  const Rng rng(3);
  for (size_t i = 0; i < w.size(); ++i) w[i] = static_cast<float>(4 * rng.uniform_at(i));
  std::vector<float> walked(w.size());
  size_t given = 0;
  const Tensor target = ex.alloc(DType::f32, {kOut, kIn});
  ex.copy(upload(ex, w).view().reshaped({kOut, kIn}), target);
  const auto code = [&](int64_t first, TensorView rows_target) {
    const Tensor host = ex.to_host(rows_target);
    for (int64_t i = 0; i < host.numel(); ++i) host.as<float>()[i] = std::nearbyint(host.as<float>()[i]);
    std::copy_n(host.as<float>(), host.numel(), walked.begin() + first * kIn);
    given += static_cast<size_t>(host.numel());
    ex.copy(ex.to_device(host), rows_target);
    return true;
  };
  ASSERT_TRUE(rows->walk(ex, target, code));
  ASSERT_EQ(given, w.size());
  const Tensor place = ex.to_host(rows->place());
  std::vector<int> seen(kOut, 0);
  for (int64_t r = 0; r < kOut; ++r) ++seen[static_cast<size_t>(place.as<int32_t>()[r])];
  for (const int times : seen) EXPECT_EQ(times, 1);
  const auto loss = [&](const auto& value) {
    double all = 0;
    for (int64_t c = 0; c < kIn; ++c)
      for (int64_t a = 0; a < kOut; ++a)
        for (int64_t b = 0; b < kOut; ++b)
          all += static_cast<double>(h[static_cast<size_t>(a * kOut + b)]) *
                 (w[static_cast<size_t>(a * kIn + c)] - value(a, c)) *
                 (w[static_cast<size_t>(b * kIn + c)] - value(b, c));
    return all;
  };
  const auto of_walk = [&](int64_t r, int64_t c) {
    return walked[static_cast<size_t>(place.as<int32_t>()[r] * kIn + c)];
  };
  const double together = loss(of_walk);
  const double alone = loss([&](int64_t r, int64_t c) { return std::nearbyint(w[static_cast<size_t>(r * kIn + c)]); });
  EXPECT_LT(together, 0.7 * alone);
  ASSERT_TRUE(rows->sweep(ex, target, code));
  EXPECT_LT(loss(of_walk), together) << "a descent";
}

QuantReport run(const Checkpoint& c, const std::string& recipe, const std::filesystem::path& out, QuantJob job = {}) {
  Exec ex = Exec::cpu();
  const Windows windows = made_up_windows(c.spec, 2, 16);
  const QuantPlan plan = make_plan(c, {.base = parse_recipe(recipe), .tokens = 32, .seq_len = 16});
  job.recipe = recipe;
  job.out = out;
  return run_pipeline(ex, c, plan, windows, job);
}

// A run that weighs outputs says so of every linear, has other codes, and is the same stopped and resumed.
TEST(Curvature, InThePipeline) {
  const TempDir dir;
  synthesize(dir / "tiny", {.preset = "tiny"}, {});
  const Checkpoint c = Checkpoint::open(dir / "tiny");
  const QuantReport plain = run(c, "gptq int4 g32", dir / "plain"),
                    curved = run(c, "gptq int4 g32 curvature=on", dir / "on");
  EXPECT_EQ(plain.phases.count("curvature"), 0u);
  EXPECT_EQ(curved.phases.count("curvature"), 1u);
  size_t others = 0;
  for (size_t i = 0; i < curved.linears.size(); ++i) {
    EXPECT_TRUE(curved.linears[i].coupled) << curved.linears[i].name;
    EXPECT_FALSE(plain.linears[i].coupled) << plain.linears[i].name;
    others += curved.linears[i].hash != plain.linears[i].hash;
  }
  EXPECT_GT(others, 0u);
  int asked = 0;
  QuantJob job;
  job.stop_requested = [&] { return ++asked > 1; };
  EXPECT_THROW(run(c, "gptq int4 g32 curvature=on", dir / "out", job), Error);
  job.stop_requested = {};
  job.resume = true;
  const QuantReport resumed = run(c, "gptq int4 g32 curvature=on", dir / "out", job);
  for (size_t i = 0; i < curved.linears.size(); ++i)
    EXPECT_EQ(resumed.linears[i].hash, curved.linears[i].hash) << curved.linears[i].name;
}

// Who has no way back, or no rows to couple, is told before anything is computed.
TEST(Curvature, IsRefusedWhereItCannotBe) {
  for (const char* recipe : {"rtn int4 curvature=on", "gptq int4 targets=off curvature=on", "gptq fp8 curvature=on",
                             "gptq effort=reference curvature=on", "gptq format=gguf:q4_0 curvature=on"})
    EXPECT_THROW(resolve(parse_recipe(recipe)), Error) << recipe;
  EXPECT_EQ(resolve(parse_recipe("gptq int4 g128 curvature=on")).str(), "gptq int4 g128 sym curvature=on");
  EXPECT_EQ(resolve(parse_recipe("gptq int4 g128 effort=best curvature=on")).str(), "gptq int4 g128 sym effort=best");
  EXPECT_TRUE(resolve(parse_recipe("gptq int4 g128 effort=best")).weighs_outputs);
  EXPECT_FALSE(resolve(parse_recipe("gptq int4 g128 effort=best curvature=off")).weighs_outputs);
  EXPECT_FALSE(resolve(parse_recipe("gptq fp8 effort=best")).weighs_outputs) << "not where it cannot";
  const TempDir dir;
  synthesize(dir / "moe", {.preset = "tiny-moe"}, {});
  const Checkpoint c = Checkpoint::open(dir / "moe");
  const QuantPlan plan =
      make_plan(c, {.base = parse_recipe("gptq int4 g32 curvature=on"), .tokens = 32, .seq_len = 16});
  ASSERT_FALSE(plan.refusals.empty());
  EXPECT_NE(plan.refusals[0].reason.find("a mixture of experts"), std::string::npos) << plan.refusals[0].reason;
  // Who did not ask for it by name goes without, and is told.
  const QuantPlan best = make_plan(c, {.base = parse_recipe("gptq int4 g32 effort=best"), .tokens = 32, .seq_len = 16});
  EXPECT_TRUE(best.refusals.empty());
  ASSERT_FALSE(best.linears.empty());
  EXPECT_NE(best.linears[0].note.find("no way back through a mixture of experts"), std::string::npos)
      << best.linears[0].note;
}

}  // namespace
}  // namespace fewbit::test
