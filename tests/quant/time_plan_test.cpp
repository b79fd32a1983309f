// The time plan is arithmetic on measured rates: what it counts, and that the rates are there to count with.
#include "src/quant/plan/time_plan.h"

#include <gtest/gtest.h>

#include "src/model/synth/synth.h"
#include "src/quant/plan/rates/rates.h"
#include "tests/support/support.h"

namespace fewbit::test {
namespace {

constexpr Chunks kChunks{.windows = 8, .length = 128};

class TimePlanTest : public ::testing::Test {
 protected:
  explicit TimePlanTest(const std::string& preset = "tiny") {
    synthesize(dir / "model", {.preset = preset}, {});
    c.emplace(Checkpoint::open(dir / "model"));
  }
  QuantPlan plan(const std::string& recipe) {
    return make_plan(*c, {.base = parse_recipe(recipe), .tokens = kChunks.tokens(), .seq_len = kChunks.length});
  }
  // Every op takes a second for a token and every sum two; a row of a linear costs three, its input five.
  Rates even(const QuantPlan& p) const {
    Rates r;
    for (const auto& ops : c->spec.kinds) r.op.emplace_back(ops.size(), 1.0);
    r.op_f32 = r.op;
    r.gram = {.power = 0, .low = 2, .high = 0};
    for (const PlannedLinear& l : p.linears)
      r.linears[rate_key(l)] = {.row = {.power = 0, .low = 3, .high = 0}, .factor = {.power = 0, .low = 5, .high = 0}};
    for (const Transform* t : p.transforms) r.transforms[std::string(t->name)] = {.power = 0, .low = 7, .high = 0};
    return r;
  }
  TimePlan timed(const QuantPlan& p, const Rates& r) const { return plan_time(*c, p, kChunks, DType::f32, r); }

  TempDir dir;
  std::optional<Checkpoint> c;
};

TEST(Law, GoesThroughTheLastPointAndOneHalfAsWide) {
  const Law law = law_of(2, {{1, 100.0}, {10, 1200.0}, {19, 1.0}, {20, 8800.0}});  // 2 n^2 + n^3 behind the first
  EXPECT_NEAR(law.at(10), 1200, 1e-9);
  EXPECT_NEAR(law.at(20), 8800, 1e-9);
  EXPECT_NEAR(law.at(40), 2 * 1600 + 64000, 1e-6);
}

TEST(Law, HasNoNegativePart) {
  const Law falls = law_of(1, {{10, 100.0}, {20, 110.0}});  // slower than linear: all of it is linear
  EXPECT_EQ(falls.high, 0);
  EXPECT_NEAR(falls.at(20), 110, 1e-9);
  EXPECT_NEAR(law_of(1, {{10, 3.0}}).at(20), 12, 1e-9) << "one point: the higher power alone";
  EXPECT_EQ(law_of(1, {}).at(20), 0);
}

TEST_F(TimePlanTest, PassesBeginAtTheLastCutAndCoverTheBlock) {
  QuantPlan p = plan("gptq int4 g64");
  for (const bool stores : {true, false}) {
    if (!stores) p.memory.stored.assign(c->spec.kinds.size(), {});
    const std::vector<PlannedPass> passes = passes_of(*c, p, 0);
    size_t base = 0;
    for (const PlannedPass& pass : passes) {
      EXPECT_EQ(pass.begin, base);
      EXPECT_LE(pass.begin, pass.begins_next);
      EXPECT_LE(pass.begins_next, pass.stop);
      base = pass.begins_next;
    }
    EXPECT_EQ(passes.size(), 5u) << "four inputs and the end";
    EXPECT_EQ(passes.back().stop, c->spec.block(0).size());
    EXPECT_FALSE(passes.back().observes);
  }
}

TEST_F(TimePlanTest, CountsForwardPassesSumsAndLinears) {
  QuantPlan p = plan("gptq int4 g64");
  double ops = 0, rows = 0;
  for (const PlannedPass& pass : passes_of(*c, p, 0)) ops += static_cast<double>(pass.stop - pass.begin);
  for (const PlannedLinear& l : p.linears) rows += static_cast<double>(l.linear.out);
  const double layers = static_cast<double>(c->spec.layers), tokens = static_cast<double>(kChunks.tokens());
  const TimePlan t = timed(p, even(p));
  EXPECT_DOUBLE_EQ(t.phases.at("forward"), 2 * ops * layers * tokens) << "two streams";
  EXPECT_DOUBLE_EQ(t.phases.at("observe"), 4 * layers * tokens * 2) << "four inputs of a block";
  EXPECT_DOUBLE_EQ(t.phases.at("quantize"), 3 * rows + 5 * 4 * layers) << "a factor for every input";
  double sum = 0;
  for (const auto& [phase, seconds] : t.phases) sum += seconds;
  EXPECT_DOUBLE_EQ(t.seconds, sum) << "packing and writing cost nothing here";
}

TEST_F(TimePlanTest, WhatIsNotStoredIsComputedAgain) {
  QuantPlan p = plan("gptq int4 g64");
  const Rates r = even(p);
  const double stored = timed(p, r).phases.at("forward");
  p.memory.stored.assign(c->spec.kinds.size(), {});
  EXPECT_GT(timed(p, r).phases.at("forward"), stored);
}

TEST_F(TimePlanTest, DataFreeRecipesRunNothing) {
  const QuantPlan p = plan("rtn int4 g64");
  const TimePlan t = timed(p, even(p));
  EXPECT_EQ(t.phases.count("forward"), 0u);
  EXPECT_GT(t.phases.at("quantize"), 0);
}

TEST_F(TimePlanTest, TransformsAndLearningHaveTheirPhases) {
  QuantPlan p = plan("awq+gptq int4 g64");
  EXPECT_GT(timed(p, even(p)).phases.at("transform"), 0);
  p = plan("gptq int3 g64 effort=best");
  EXPECT_GT(timed(p, even(p)).phases.at("learn"), 0);
}

// Nothing of a timing is right or wrong; but whatever is counted must have been measured.
class MeasuredRates : public TimePlanTest, public ::testing::WithParamInterface<const char*> {};

TEST_P(MeasuredRates, HaveAllThatThePlanCounts) {
  QuantPlan p = plan(GetParam());
  ASSERT_TRUE(p.refusals.empty());
  Exec ex = Exec::cpu();
  const Chunks chunks = p.calibrates() ? kChunks : Chunks{};
  const Rates r = measure_rates(ex, *c, p, {.chunks = chunks, .out = dir / "out", .budget = 0.2});
  for (const PlannedLinear& l : p.linears) {
    const LinearRates& rates = r.linears.at(rate_key(l));
    EXPECT_GT(rates.row.at(l.linear.in) + rates.system.at(l.linear.in), 0) << l.linear.name;
  }
  EXPECT_GT(r.bytes.write, 0);
  EXPECT_GT(r.bytes.source, 0);
  EXPECT_GT(r.seconds, 0);
  const TimePlan t = plan_time(*c, p, chunks, DType::f32, r);
  EXPECT_GT(t.seconds, 0);
  EXPECT_EQ(t.phases.count("forward"), p.calibrates() ? 1u : 0u);
  warm_up(ex, *c, p, {.chunks = chunks});  // which takes every kind of linear through its method
  for (const auto& entry : std::filesystem::directory_iterator(dir.path()))
    EXPECT_EQ(entry.path().filename(), "model") << "nothing is left behind";
}
INSTANTIATE_TEST_SUITE_P(Recipes, MeasuredRates,
                         ::testing::Values("gptq int4 g64", "gptq int4 g64 effort=quick act=full", "rtn int4 g64",
                                           "rtn int4 g64 asym format=awq", "awq int4 g64", "fp8 block128", "gptq w8a8",
                                           "smoothquant+gptq", "rtn nvfp4 format=modelopt", "rtn format=gguf:q8_0",
                                           "rtn format=gguf:q4_k"));

class MixtureRates : public TimePlanTest {
 protected:
  MixtureRates() : TimePlanTest("tiny-moe") {}
};

TEST_F(MixtureRates, ExpertsAreCounted) {
  const QuantPlan p = plan("gptq int4 g64 effort=quick");
  Exec ex = Exec::cpu();
  const Rates r = measure_rates(ex, *c, p, {.chunks = kChunks, .out = dir / "out", .budget = 0.2});
  EXPECT_GT(plan_time(*c, p, kChunks, DType::f32, r).phases.at("observe"), 0);
}

}  // namespace
}  // namespace fewbit::test
