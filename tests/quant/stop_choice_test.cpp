// What lives in front of a stop is stored where that takes less time than to compute it again; the bytes of OUT do not
// depend on the choice.
#include "src/quant/plan/stop_choice.h"

#include <gtest/gtest.h>

#include "src/calib/cuts.h"
#include "src/model/synth/synth.h"
#include "src/quant/loop/pipeline.h"
#include "src/quant/plan/rates/rates.h"
#include "src/quant/plan/time_plan.h"
#include "tests/support/support.h"

namespace fewbit::test {
namespace {

using Where = StopChoice::Where;

class StopChoiceTest : public ::testing::Test {
 protected:
  StopChoiceTest() {
    synthesize(dir / "model", {.preset = "tiny"}, {});
    c.emplace(Checkpoint::open(dir / "model"));
    options = {.base = parse_recipe("gptq int4 g64 effort=quick"), .tokens = 512, .seq_len = 128};
  }
  QuantPlan decided(double op_seconds, const ByteRates& bytes) {
    QuantPlan p = make_plan(*c, options);
    Rates r;
    for (const auto& ops : c->spec.kinds) r.op.emplace_back(ops.size(), op_seconds);
    r.bytes = bytes;
    p.memory = decide_stops(*c, p, options, r);
    return p;
  }
  static void expect_all(const QuantPlan& p, Where place) {
    ASSERT_FALSE(p.memory.stops.empty());
    for (const StopChoice& s : p.memory.stops) EXPECT_EQ(s.place, place) << s.linears;
  }
  std::string out_of(const QuantPlan& p, const std::string& name) {
    Windows w;
    w.count = 4;
    w.length = 128;
    for (int i = 0; i < 512; ++i) w.ids.push_back(i * 7 % static_cast<int>(c->spec.vocab));
    Exec ex = Exec::cpu();
    run_pipeline(ex, *c, p, w, {.recipe = "gptq", .out = dir / name});
    return bytes_of_file(dir / (name + "/model.safetensors"));
  }

  TempDir dir;
  std::optional<Checkpoint> c;
  PlanOptions options;
};

TEST_F(StopChoiceTest, EachPlaceIsTakenWhereItCostsLeastAndTheBytesAreTheSame) {
  const QuantPlan kept = decided(1, {});
  expect_all(kept, Where::host);
  EXPECT_GT(kept.memory.states, state_bytes(*c, kept, options, {{}, {}}));
  const QuantPlan again = decided(0, {.device = 1});
  expect_all(again, Where::computed);
  EXPECT_EQ(again.memory.stored, std::vector<std::set<size_t>>(c->spec.kinds.size()));
  options.limits.host = again.memory.least_host;  // no room for states
  const QuantPlan disk = decided(1, {.device = 1});
  expect_all(disk, Where::disk);
  EXPECT_EQ(disk.memory.scratch, disk.memory.states);
  const std::string bytes = out_of(kept, "kept");
  EXPECT_EQ(out_of(again, "again"), bytes);
  EXPECT_EQ(out_of(disk, "disk"), bytes);
}

TEST_F(StopChoiceTest, SecondsAreThoseOfABlock) {
  const QuantPlan p = decided(1, {.device = 1e-9});
  const std::optional<size_t> last = last_look(c->spec, p, 0);
  ASSERT_EQ(p.memory.stops.back().op, last);
  for (const StopChoice& s : p.memory.stops) {
    // Behind the last look at the unquantized stream nothing is kept of it.
    const int64_t rows = 512 * (s.op == last ? 1 : 2);
    EXPECT_EQ(s.bytes, rows * 4 * features_alive(c->spec, c->spec.block(0), s.op)) << s.linears;
    EXPECT_DOUBLE_EQ(s.store_seconds, 2e-9 * static_cast<double>(s.bytes)) << s.linears;
    EXPECT_GT(s.compute_seconds, 0) << s.linears;
    EXPECT_EQ(static_cast<int64_t>(s.compute_seconds) % 512, 0) << "whole ops, of every token";
  }
}

TEST_F(StopChoiceTest, TheLastLookIsAtTheLastInputThatOnePassSees) {
  const auto last_linears = [&] {
    const std::optional<size_t> last = last_look(c->spec, make_plan(*c, options), 0);
    return last ? linears_of(c->spec.block(0)[*last]).front().name : "none";
  };
  EXPECT_EQ(last_linears(), "mlp.down_proj");
  options.base = parse_recipe("gptq int4 g64 effort=quick targets=off");
  EXPECT_EQ(last_linears(), "none") << "one stream";
  options.base = parse_recipe("gptq int8 g-1 acts=tensor effort=quick");
  EXPECT_EQ(last_linears(), "none") << "an input is seen twice, first for its scale";
}

TEST_F(StopChoiceTest, DataFreeRecipesHaveNoStops) {
  options.base = parse_recipe("rtn int4 g64");
  EXPECT_TRUE(decided(1, {}).memory.stops.empty());
}

}  // namespace
}  // namespace fewbit::test
