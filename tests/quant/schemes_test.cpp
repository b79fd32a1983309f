// `auto schemes=`: words, what may be chosen and what is refused before anything is measured, and the choice itself
// beside one that tries everything.
#include "src/quant/search/schemes.h"

#include <gtest/gtest.h>

#include <functional>
#include <optional>
#include <set>

#include "src/core/rng.h"
#include "src/model/synth/synth.h"
#include "src/quant/search/mixed_precision.h"
#include "tests/support/support.h"

namespace fewbit::test {
namespace {

class Schemes : public ::testing::Test {
 protected:
  Schemes() { open("tiny"); }
  void open(const std::string& preset) {
    synthesize(dir / preset, {.preset = preset}, {});
    checkpoint.emplace(Checkpoint::open(dir / preset));
  }
  PrecisionChoices choices(const std::string& recipe, const std::string& engine = "", std::vector<Rule> rules = {}) {
    return precision_choices(*checkpoint, {.base = parse_recipe(recipe), .rules = std::move(rules), .engine = engine});
  }
  PrecisionPlan choose(const std::string& recipe, const std::string& engine = "") {
    Windows windows{.count = 4, .length = 32, .ids = {}, .source = "random"};
    Rng rng(11);
    for (int i = 0; i < 4 * 32; ++i)
      windows.ids.push_back(static_cast<int32_t>(rng.below(static_cast<uint64_t>(checkpoint->spec.vocab))));
    Exec ex = Exec::cpu();
    const PrecisionJob job{.base = parse_recipe(recipe), .engine = engine};
    return choose_precision(ex, *checkpoint, windows, job, precision_choices(*checkpoint, job));
  }
  QuantPlan plan_of(const std::string& recipe, const PrecisionPlan& p, const std::string& engine = "") {
    return make_plan(*checkpoint, {.base = parse_recipe(recipe), .chosen = p.recipes(), .engine = engine});
  }
  // Names of the candidates that some linears may get.
  static std::set<std::string> offered(const PrecisionChoices& c) {
    std::set<std::string> names;
    for (const PrecisionUnit& u : c.units)
      for (const size_t i : u.allowed) names.insert(c.candidates[i].name());
    return names;
  }

  TempDir dir;
  std::optional<Checkpoint> checkpoint;
};

TEST_F(Schemes, WordsAreReadOnceAndTyposNamed) {
  EXPECT_EQ(schemes_from("int4,nvfp4,int4"), (std::vector<std::string>{"int4", "nvfp4"}));
  const std::string typo = message_of([] { schemes_from("int4,nvpf4"); }, ErrorKind::usage);
  for (const char* word : {"nvpf4", "did you mean \"nvfp4\"", "int3", "mxfp4", "bf16", "all"})
    EXPECT_NE(typo.find(word), std::string::npos) << typo;
  EXPECT_NE(message_of([] { schemes_from(""); }, ErrorKind::usage), "");
}

TEST_F(Schemes, FloatsAreOfCompressedTensors) {
  EXPECT_EQ(resolve(parse_recipe("auto")).format, "marlin");
  EXPECT_EQ(resolve(parse_recipe("auto schemes=int4,int8,bf16")).format, "marlin");
  EXPECT_EQ(resolve(parse_recipe("auto schemes=int4,fp8")).format, "compressed-tensors");
  EXPECT_EQ(resolve(parse_recipe("auto schemes=all")).format, "compressed-tensors");
  EXPECT_EQ(resolve(parse_recipe("auto schemes=int4,fp8 format=marlin")).format, "marlin");
}

TEST_F(Schemes, AnotherMethodForSomeLinearsLeavesAutoBehind) {
  const Recipe auto_recipe = parse_recipe("auto schemes=nvfp4,fp8 target-bits=5");
  const FullRecipe f = resolve(overlay(auto_recipe, parse_recipe("rtn int8 g128")));
  EXPECT_EQ(f.str(), "rtn int8 g128 sym");
  EXPECT_EQ(f.format, "compressed-tensors");
}

TEST_F(Schemes, EachAloneIsWhatEveryLinearGets) {
  const std::pair<const char*, const char*> cases[] = {
      {"int3", "int3 g"}, {"int4", "int4 g"}, {"int8", "int8 g128 sym"}, {"nvfp4", "nvfp4"},
      {"mxfp4", "mxfp4"}, {"fp8", "fp8 gch"}, {"bf16", "bf16"}};
  for (const auto& [word, name] : cases) {
    const std::string recipe = std::string("auto target-bits=16 schemes=") + word;
    const PrecisionPlan p = choose(recipe);
    for (const PrecisionChoice& c : p.choices) EXPECT_EQ(c.scheme().candidate.name().rfind(name, 0), 0u) << word;
    const QuantPlan plan = plan_of(recipe, p);
    EXPECT_TRUE(plan.refusals.empty()) << word << ": " << plan.refusals.front().reason;
    if (std::string(word) == "bf16") continue;  // no linear is quantized
    EXPECT_NEAR(plan.bits_per_weight, p.bits, 1e-9) << word;
  }
}

TEST_F(Schemes, TheChoiceIsWhatTryingEverythingFinds) {
  const PrecisionPlan p = choose("auto schemes=nvfp4,mxfp4,fp8,bf16 target-bits=6.3");
  double weights = 0;
  for (const PrecisionChoice& c : p.choices) weights += c.weights;
  double best = 1e300;
  std::set<std::string> taken;
  const std::function<void(size_t, int64_t, double)> next = [&](size_t u, int64_t bytes, double cost) {
    if (8.0 * static_cast<double>(bytes) > 6.3 * weights) return;
    if (u == p.choices.size()) {
      best = std::min(best, cost);
      return;
    }
    for (const OfferedScheme& s : p.choices[u].offered) next(u + 1, bytes + s.bytes, cost + s.cost);
  };
  next(0, 0, 0);
  EXPECT_DOUBLE_EQ(p.cost, best);
  EXPECT_LE(p.bits, 6.3);
  for (const PrecisionChoice& c : p.choices) taken.insert(c.scheme().candidate.name());
  EXPECT_GT(taken.size(), 1u);
}

TEST_F(Schemes, OnlyWhatFormatAndEngineTakeIsOffered) {
  EXPECT_TRUE(offered(choices("auto schemes=all")).count("int3 g64 sym"));
  EXPECT_TRUE(offered(choices("auto schemes=all")).count("mxfp4"));
  EXPECT_FALSE(offered(choices("auto schemes=all", "vllm")).count("int3 g64 sym"));
  EXPECT_TRUE(offered(choices("auto schemes=all", "vllm")).count("mxfp4"));
  EXPECT_FALSE(offered(choices("auto schemes=all", "sglang")).count("mxfp4"));
  EXPECT_EQ(offered(choices("auto schemes=all format=marlin")).count("nvfp4"), 0u);
  EXPECT_EQ(offered(choices("auto schemes=int4 sym")).count("int4 g64 asym"), 0u);
}

TEST_F(Schemes, RefusedBeforeAnythingIsMeasured) {
  const auto unsupported = [&](const std::string& recipe, const std::string& engine = "") {
    return message_of([&] { choices(recipe, engine); }, ErrorKind::unsupported);
  };
  EXPECT_NE(unsupported("auto schemes=int4,nvfp4 format=marlin").find("nvfp4"), std::string::npos);
  EXPECT_NE(unsupported("auto schemes=int4 asym format=awq target-bits=5").find("one mix"), std::string::npos);
  EXPECT_NE(unsupported("auto schemes=int3,int4", "vllm").find("int3"), std::string::npos);
  EXPECT_NE(unsupported("auto schemes=int4,mxfp4", "sglang").find("mxfp4"), std::string::npos);
  const std::string order = message_of([&] { choices("auto schemes=nvfp4 act=full"); }, ErrorKind::usage);
  EXPECT_NE(order.find("nvfp4"), std::string::npos);
  EXPECT_NE(message_of([&] { choices("auto schemes=int4 g64"); }, ErrorKind::usage).find("leave them out"),
            std::string::npos);
  EXPECT_NE(message_of([&] { choices("auto schemes=fp8,bf16 target-bits=7"); }, ErrorKind::usage).find("smallest"),
            std::string::npos);
}

TEST_F(Schemes, TheMixIsWhatTheEngineLoads) {
  open("tiny-moe");
  for (const char* engine : {"vllm", "sglang", "transformers"}) {
    const std::string recipe = "auto schemes=all target-bits=5";
    const QuantPlan plan = plan_of(recipe, choose(recipe, engine), engine);
    EXPECT_TRUE(plan.refusals.empty()) << engine << ": " << plan.refusals.front().reason;
  }
}

TEST_F(Schemes, AnExpertCountsByItsShareOfTheTokens) {
  open("tiny-moe");
  const Moe* moe = nullptr;
  for (const BlockOp& op : checkpoint->spec.block(0))
    if (const Moe* m = std::get_if<Moe>(&op)) moe = m;
  ASSERT_TRUE(moe);
  const std::string recipe = "auto schemes=nvfp4,fp8,bf16 target-bits=7";
  const PrecisionPlan all = choose(recipe), active = choose(recipe + " budget=active");
  double bytes = 0, weights = 0;
  for (const PrecisionChoice& c : active.choices) {
    const bool experts = c.linears.front().find("experts") != std::string::npos;
    EXPECT_EQ(c.share, experts ? static_cast<double>(moe->top_k) / moe->experts : 1.0) << c.linears.front();
    bytes += c.share * static_cast<double>(c.scheme().bytes);
    weights += c.share * c.weights;
  }
  EXPECT_NEAR(active.bits, 8 * bytes / weights, 1e-3);
  EXPECT_LE(active.bits, 7);
  EXPECT_LE(all.bits, 7);
}

// The budgets of bytes and of time are those of the weights that they leave.
TEST_F(Schemes, BytesAndTimeAreBudgetsToo) {
  const std::string words = "auto schemes=nvfp4,fp8,bf16";
  const PrecisionChoices bits = choices(words + " target-bits=6");
  const PrecisionPlan plan = choose(words + " budget=450KiB");
  const QuantPlan written = plan_of(words, plan);
  EXPECT_LE(written.out_bytes, 450 * 1024);
  EXPECT_GT(written.out_bytes, 430 * 1024);
  const PrecisionChoices step = choices(words + " budget=1ms@rtx4090");
  EXPECT_GT(step.budget, bits.budget);  // so small a model is read in microseconds
  EXPECT_TRUE(step.active);
  EXPECT_NE(message_of([&] { choices(words + " budget=0.00001ms@rtx4090"); }, ErrorKind::usage).find("ms@rtx4090"),
            std::string::npos);
  EXPECT_NE(message_of([&] { choices(words + " budget=1KiB"); }, ErrorKind::usage).find("1.00 KiB"), std::string::npos);
  EXPECT_NE(message_of([] { budget_from("2ms@rtx4900"); }, ErrorKind::usage).find("rtx4090"), std::string::npos);
  for (const char* wrong : {"", "fast", "0", "-5GB", "nan", "ms@h200", "0ms@h200", "infms@h200"})
    EXPECT_NE(message_of([&] { budget_from(wrong); }, ErrorKind::usage), "") << wrong;
}

// The embedding and the head among what was chosen for.
std::set<std::string> chosen_ends(const PrecisionPlan& p) {
  std::set<std::string> names;
  for (const PrecisionChoice& c : p.choices)
    if (c.linears.front().find("layers") == std::string::npos) names.insert(c.linears.front());
  return names;
}

std::set<std::string> all_ends(const Checkpoint& c) {
  std::set<std::string> names;
  for (const NamedLinear& l : ends_of(c.spec)) names.insert(l.name);
  return names;
}

TEST_F(Schemes, InABudgetOfBytesTheEndsAreChosenForWhereTheyCanBeLoaded) {
  const std::set<std::string> ends = all_ends(*checkpoint);
  EXPECT_EQ(chosen_ends(choose("auto schemes=int4,int8,bf16 budget=450KiB")), ends);
  EXPECT_EQ(chosen_ends(choose("auto budget=450KiB")), ends);
  EXPECT_NE(choose("auto budget=450KiB").summary().find("with " + *ends.begin() + " in "), std::string::npos);
  EXPECT_TRUE(chosen_ends(choose("auto budget=450KiB ends=off")).empty());
  EXPECT_TRUE(chosen_ends(choose("auto budget=450KiB format=gptq")).empty()) << "no engine reads them there";
  EXPECT_TRUE(chosen_ends(choose("auto target-bits=5.5")).empty());
  const PrecisionChoices for_engine = choices("auto schemes=fp8,bf16 budget=700KiB", "vllm");
  for (const PrecisionUnit& unit : for_engine.units) EXPECT_NE(unit.linears.layer, kOutsideBlocks);
}

TEST_F(Schemes, EmbeddingAndHeadAreChosenForWhereAsked) {
  const std::string words = "auto schemes=int4,int8,bf16 target-bits=5.5";
  EXPECT_TRUE(chosen_ends(choose(words)).empty());
  const PrecisionPlan p = choose(words + " ends=on");
  EXPECT_EQ(chosen_ends(p), all_ends(*checkpoint));
  for (const PrecisionChoice& c : p.choices)
    for (const OfferedScheme& s : c.offered) EXPECT_EQ(s.cost == 0, s.candidate.over.keep) << c.linears.front();
  const QuantPlan plan = plan_of(words, p);
  EXPECT_TRUE(plan.refusals.empty());
  for (const PrecisionChoice& c : p.choices)
    if (!c.scheme().candidate.over.keep) {
      EXPECT_EQ(plan.of(c.linears.front()).recipe.spec, c.scheme().candidate.spec) << c.linears.front();
    }
  EXPECT_NE(message_of([&] { choices(words + " ends=on", "vllm"); }, ErrorKind::usage).find("ends=on"),
            std::string::npos);
}

}  // namespace
}  // namespace fewbit::test
