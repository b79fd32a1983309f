// The bench on the demo model: what its rows hold, not how fast anything is.
#include "src/run/bench/bench.h"

#include <algorithm>
#include <cmath>

#include "src/core/error.h"
#include "src/model/work.h"
#include "src/run/bench/bench_compare.h"
#include "tests/support/paths.h"
#include "tests/support/support.h"

namespace fewbit::test {
namespace {

std::filesystem::path demo() { return in_source("calib_data/demo-model"); }

TEST(Bench, PercentilesAreNearestRanks) {
  std::vector<double> v;
  for (int i = 100; i >= 1; --i) v.push_back(i);
  const Spread s = spread_of(v);
  EXPECT_EQ(s.mean, 50.5);
  EXPECT_EQ(s.p50, 50);
  EXPECT_EQ(s.p90, 90);
  EXPECT_EQ(s.p95, 95);
  EXPECT_EQ(s.p99, 99);
  EXPECT_TRUE(std::isnan(spread_of({3}).std)) << "one run has no spread";
}

TEST(Bench, EveryShapeIsARowAndTheWeightsAreCountedOnce) {
  Exec ex = Exec::cpu();
  BenchOptions o;
  o.shapes = {{.batch = 3, .prompt_tokens = 9, .tokens = 4}, {.batch = 1, .prompt_tokens = 5, .tokens = 2}};
  o.repetitions = 2;
  o.warmup = 1;
  const BenchResult r = bench(ex, demo(), o);
  ASSERT_EQ(r.rows.size(), 2u);
  for (const BenchRow& row : r.rows) {
    EXPECT_GT(row.ms_per_token.mean, 0);
    EXPECT_GE(row.ms_per_token.p99, row.ms_per_token.p50);
    EXPECT_DOUBLE_EQ(row.floor_share, row.gb_per_s / r.memory.read_gb_per_s);
    EXPECT_LE(row.peak_bytes, r.peak_bytes);
    EXPECT_DOUBLE_EQ(row.tflop_per_s, row.flop_per_token / row.ms_per_token.mean / 1e9);
    EXPECT_GT(row.prefill_tflop_per_s, 0);
  }
  EXPECT_GT(r.product_tflop_per_s, 0);
  // Cache bytes: 3 sequences at context 9 + 1 + 2 against one at 5 + 1 + 1; weights are the same.
  const Checkpoint c = Checkpoint::open(demo());
  Engine engine(ex, c, {.load = o.load, .capacity = 8});
  EXPECT_EQ(r.rows[1].bytes_per_token, engine.weight_bytes_per_token() + engine.kv_bytes_per_token(7));
  EXPECT_EQ(r.rows[0].bytes_per_token, engine.weight_bytes_per_token() + 3 * engine.kv_bytes_per_token(12));
  // The work: 3 prompts of 9 tokens; a step that sees its own position and 6 before it.
  EXPECT_EQ(r.rows[0].prefill_flop, pass_flop(c.spec, 3, 0, 9));
  EXPECT_EQ(r.rows[1].flop_per_token, pass_flop(c.spec, 1, 6, 1));
  EXPECT_EQ(r.rows[1].prefill_bytes,
            static_cast<double>(engine.weight_bytes_per_token() + engine.kv_bytes_per_token(5)));
  // In chunks the weights are read again, and the cache so far.
  const Engine chunked(ex, c, {.load = o.load, .capacity = 8, .prefill_chunk = 3});
  EXPECT_EQ(chunked.prefill_bytes(7), 3 * engine.weight_bytes_per_token() + engine.kv_bytes_per_token(3) +
                                          engine.kv_bytes_per_token(6) + engine.kv_bytes_per_token(7));
}

TEST(Bench, TooManyPositionsAreRefused) {
  Exec ex = Exec::cpu();
  BenchOptions o;
  o.shapes = {{}, {.prompt_tokens = 2048}};
  try {
    bench(ex, demo(), o);
    FAIL() << "2048 prompt tokens leave no position";
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find("1024"), std::string::npos) << e.what();
  }
}

// A resized engine chooses what a new one of that size chooses.
TEST(Bench, AResizedEngineIsLikeANewOne) {
  Exec ex = Exec::cpu();
  const Checkpoint c = Checkpoint::open(demo());
  const std::vector<int32_t> prompt = {5, 6, 7, 8, 9, 10, 11, 12};
  const auto chosen = [&](Engine& engine) {
    std::vector<int32_t> ids;
    engine.greedy_start(engine.prefill(prompt));
    for (int i = 0; i < 6; ++i, engine.greedy_step())
      for (const int32_t id : engine.greedy_tokens()) ids.push_back(id);
    return ids;
  };
  Engine fresh(ex, c, {.batch = 2, .capacity = 12});
  Engine resized(ex, c, {.batch = 1, .capacity = 20});
  chosen(resized);
  resized.resize(2, 12);
  EXPECT_EQ(resized.length(), 0);
  EXPECT_EQ(chosen(resized), chosen(fresh));
  EXPECT_THROW(resized.prefill(prompt), Error) << "its capacity is the new one";
}

// Every op of every layer is in the trace once, whether it ran alone or with its neighbour, and watching changes
// nothing.
TEST(Bench, ATraceHoldsEveryOpOnce) {
  Exec ex = Exec::cpu();
  const Checkpoint c = Checkpoint::open(demo());
  Engine engine(ex, c, {.capacity = 12, .prefill_chunk = 3});
  const std::vector<int32_t> prompt = {5, 6, 7, 8, 9};
  engine.greedy_start(engine.prefill(prompt));
  const std::vector<int32_t> chosen = engine.greedy_tokens();
  const std::vector<TracedPass> passes = trace_passes(ex, engine, prompt);
  ASSERT_EQ(passes.size(), 2u);
  const auto count = [&](const TracedPass& pass, int64_t layer) {
    int64_t n = 0;
    for (const TracedOp& op : pass.ops)
      if (op.layer == layer) n += 1 + std::count(op.name.begin(), op.name.end(), ',');
    return n;
  };
  for (int64_t layer = 0; layer < c.spec.layers; ++layer) {
    const auto ops = static_cast<int64_t>(c.spec.block(layer).size());
    EXPECT_EQ(count(passes[0], layer), 2 * ops) << "two chunks of the prompt";
    EXPECT_EQ(count(passes[1], layer), ops);
  }
  EXPECT_EQ(count(passes[1], -1), 4) << "embedding, final norm, head, choice";
  for (const TracedPass& pass : passes)
    for (size_t i = 0; i + 1 < pass.ops.size(); ++i)
      EXPECT_LE(pass.ops[i].begin_us + pass.ops[i].us, pass.ops[i + 1].begin_us + 1e-3) << pass.ops[i].name;
  engine.greedy_start(engine.prefill(prompt));
  EXPECT_EQ(engine.greedy_tokens(), chosen);
}

TEST(Bench, RatiosArePaired) {
  const TimeRatio r = ratio_of({1, 2, 4}, {2, 4, 8});  // the pairs agree exactly, whatever the times do
  EXPECT_DOUBLE_EQ(r.value, 2);
  EXPECT_NEAR(r.stderr_, 0, 1e-12);
  EXPECT_GT(ratio_of({1, 1}, {1, 2}).stderr_, 0.1);
}

TEST(Bench, AnOddNumberOfStepsCannotBeSharedOut) {
  Exec ex = Exec::cpu();
  BenchOptions o;
  o.shapes[0].tokens = 3;
  EXPECT_THROW(compare_speed(ex, demo(), demo(), o), Error);
}

}  // namespace
}  // namespace fewbit::test
