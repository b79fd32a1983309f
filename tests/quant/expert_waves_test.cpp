// Experts whose weights come in waves: the bytes are those of a run that has all of them in memory, and the smallest
// limit of a model no longer holds them.
#include <fmt/ranges.h>
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>

#include "src/model/synth/synth.h"
#include "src/quant/loop/pipeline.h"
#include "tests/support/support.h"

namespace fewbit::test {
namespace {

constexpr int64_t kWindows = 3, kLength = 512;

struct Case {
  const char *name, *model, *recipe, *keep = "";
};

class ExpertWaves : public ::testing::TestWithParam<Case> {
 protected:
  static std::string folder() { return std::string("goldens/models/") + GetParam().model; }
  static PlanOptions options() {
    PlanOptions o{.base = parse_recipe(GetParam().recipe), .tokens = kWindows * kLength, .seq_len = kLength};
    if (const std::string keep = GetParam().keep; !keep.empty())
      o.rules = {{.glob = keep, .recipe = parse_recipe("keep")}};
    return o;
  }
  // The plan of the smallest limit that the refusal of a plan without any room names. Where something else than the
  // experts takes the most, waves are not chosen by themselves.
  static QuantPlan smallest(const Checkpoint& c) {
    PlanOptions o = options();
    o.limits.host = 1;
    o.limits.host = make_plan(c, o).memory.least_host;
    QuantPlan plan = make_plan(c, o);
    plan.memory.experts_in_waves = true;
    plan.memory.experts_at_once = 3;
    return plan;
  }
  static Windows windows(const Checkpoint& c) {
    std::vector<int32_t> ids;
    for (int64_t i = 0; i < kWindows * kLength; ++i)
      ids.push_back(static_cast<int32_t>((i * 7919 + i / 64 * 31) % c.spec.vocab));
    return windows_from_ids(std::move(ids), kWindows, kLength, "made");
  }
};

TEST_P(ExpertWaves, GiveTheBytesOfAllAtOnceStoppedAndResumedToo) {
  FEWBIT_NEEDS_REFERENCE(folder() + "/config.json");
  Exec ex = Exec::cpu();
  const Checkpoint c = Checkpoint::open(reference(folder()));
  const TempDir dir;
  const auto written = [&](const QuantPlan& plan, const QuantJob& job) {
    const QuantReport r = run_pipeline(ex, c, plan, windows(c), job);
    std::string all = bytes_of_file(job.out / "model.safetensors");
    for (const LinearRecord& l : r.linears) all += fmt::format("{} {} {} {}\n", l.name, l.hash, l.loss, l.tokens);
    for (const ExpertRecord& e : r.experts) all += fmt::format("{}: {}\n", e.layer, fmt::join(e.tokens, " "));
    return all;
  };
  const QuantPlan whole = make_plan(c, options()), waves = smallest(c);
  ASSERT_TRUE(whole.refusals.empty() && waves.memory.refusal.empty()) << waves.memory.refusal;
  EXPECT_FALSE(whole.memory.experts_in_waves);
  QuantJob job{.recipe = GetParam().recipe, .out = dir / "whole"};
  const std::string expected = written(whole, job);
  job.out = dir / "waves";
  EXPECT_TRUE(written(waves, job) == expected);
  int asked = 0;
  job.out = dir / "resumed";
  job.stop_requested = [&] { return ++asked > 1; };
  EXPECT_THROW(run_pipeline(ex, c, waves, windows(c), job), Error);
  job.stop_requested = {};
  job.resume = true;
  EXPECT_TRUE(written(waves, job) == expected);
}

INSTANTIATE_TEST_SUITE_P(
    Recipes, ExpertWaves,
    ::testing::Values(Case{"TwoStreams", "qwen3-moe", "gptq int4 g64 effort=quick"},
                      Case{"OneStream", "qwen3-moe", "gptq int4 g64 effort=reference"},
                      Case{"StaticScales", "qwen3-moe", "fp8 acts=tensor"},
                      Case{"KeptExperts", "qwen3-moe", "gptq int4 g64 effort=quick", "*experts.[0-3].*"},
                      Case{"BlocksOfGguf", "qwen3-moe", "gptq format=gguf:q4_0"},
                      Case{"Biases", "gpt-oss-bf16", "gptq int4 g32 effort=quick"},
                      Case{"SharedExpertsBehind", "deepseek-v3-mla", "gptq int4 g32 effort=quick"}),
    [](const auto& info) { return info.param.name; });

// 64 experts, of whose weights the passes have two copies in f32.
TEST(ExpertWavesPlan, TheSmallestLimitDoesNotHoldAllExperts) {
  const TempDir dir;
  synthesize(dir / "tiny", {.preset = "tiny-moe"}, {});
  nlohmann::json config = nlohmann::json::parse(std::ifstream(dir / "tiny/config.json"));
  config["num_experts"] = 64;
  config["moe_intermediate_size"] = 512;
  config["num_hidden_layers"] = 1;
  synthesize(dir / "model", {.config = config.dump()}, {});
  const Checkpoint c = Checkpoint::open(dir / "model");
  PlanOptions o{.base = parse_recipe("gptq int4 g128"), .tokens = 2048, .seq_len = 512};
  const int64_t all_experts = int64_t{64} * 3 * 512 * 128 * 4 * 2;
  const QuantPlan whole = make_plan(c, o);
  o.limits.host = 1;
  const QuantPlan least = make_plan(c, o);
  EXPECT_FALSE(whole.memory.experts_in_waves);
  EXPECT_TRUE(least.memory.experts_in_waves);
  EXPECT_GT(whole.memory.least_host, all_experts);
  EXPECT_LT(least.memory.least_host, whole.memory.least_host - all_experts);
  EXPECT_EQ(least.memory.smallest_host, whole.memory.smallest_host) << "it depends on the limit that was given";
  o.limits.host = least.memory.smallest_host;
  EXPECT_EQ(make_plan(c, o).memory.refusal, "");
  o.limits.host -= 1;
  EXPECT_NE(make_plan(c, o).memory.refusal, "");
}

TEST(MemoryRefusal, SaysWhatToDoAboutTheLimitThatBinds) {
  const TempDir dir;
  synthesize(dir / "tiny", {.preset = "tiny"}, {});
  const Checkpoint c = Checkpoint::open(dir / "tiny");
  PlanOptions o{.base = parse_recipe("gptq int4 g128"), .tokens = 2048, .seq_len = 512};
  o.limits.host = 1;
  const auto refusal = [&](const char* limit) {
    o.limits.host_name = limit;
    return make_plan(c, o).memory.refusal;
  };
  EXPECT_NE(refusal("--max-host-memory").find("; give it --max-host-memory "), std::string::npos);
  EXPECT_NE(refusal("ulimit -v").find("(ulimit -v); raise that limit by "), std::string::npos);
  EXPECT_NE(refusal("cgroup limit /a").find("(cgroup limit /a); raise that limit by "), std::string::npos);
  EXPECT_NE(refusal("MemAvailable").find("(MemAvailable); free "), std::string::npos);
}

}  // namespace
}  // namespace fewbit::test
