// Every family of the registry, on random weights, by every kind of recipe in every kind of format: quantized, reopened
// and verified; or refused by the plan for the reason that the table below gives.
#include <fmt/format.h>

#include <algorithm>

#include "src/eval/verify.h"
#include "src/model/family.h"
#include "src/model/synth/synth.h"
#include "src/quant/loop/pipeline.h"
#include "tests/support/support.h"
#include "tests/support/tiny_families.h"

namespace fewbit::test {
namespace {

constexpr const char* kRecipes[] = {"rtn", "gptq effort=quick", "awq effort=quick", "smoothquant effort=quick", "fp8"};
constexpr const char* kFormats[] = {"compressed-tensors", "marlin", "gptq", "gguf"};

// What is refused: "" stands for all of a kind; the first line that fits counts.
struct Refused {
  std::string_view recipe, format, family, words;
};
constexpr Refused kRefused[] = {
    {"smoothquant", "marlin", "", "int8"},  // weights alone there
    {"smoothquant", "gptq", "", "int8"},
    {"smoothquant", "gguf", "", "gguf"},
    {"awq", "", "DeepseekV4ForCausalLM", "ids of the tokens"},  // a block by itself lacks them
    {"smoothquant", "", "DeepseekV4ForCausalLM", "ids of the tokens"},
    {"fp8", "gptq", "", "fp8"},  // integers alone there
    {"fp8", "gguf", "", "gguf"},
};

const Refused* refused(std::string_view recipe, std::string_view format, std::string_view family) {
  const auto fits = [](std::string_view wanted, std::string_view found) {
    return wanted.empty() || found.substr(0, wanted.size()) == wanted;
  };
  for (const Refused& r : kRefused)
    if (fits(r.recipe, recipe) && fits(r.format, format) && fits(r.family, family)) return &r;
  return nullptr;
}

class FamilyMatrix : public ::testing::TestWithParam<const Family*> {};

// The refusals of a plan, or of its words, in one text; "" where the plan is good.
std::string refusals_of(const Checkpoint& c, const std::string& recipe, QuantPlan& plan) {
  std::string all;
  try {
    plan = make_plan(c, {.base = parse_recipe(recipe), .tokens = 256});
  } catch (const Error& e) {
    return e.what();
  }
  for (const Refusal& r : plan.refusals) all += r.name + ": " + r.reason + "\n";
  return all;
}

TEST_P(FamilyMatrix, IsWrittenReopenedAndVerifiedOrRefused) {
  const Family& family = *GetParam();
  const TempDir dir;
  synthesize(dir / "m", {.config = tiny_config_of(family.name()).dump()}, {});
  const Checkpoint c = Checkpoint::open(dir / "m");
  std::vector<int32_t> ids;
  for (int32_t i = 0; i < 256; ++i) ids.push_back(i * 37 % 256);
  Exec ex = Exec::cpu();
  int written = 0;
  for (const char* method : kRecipes)
    for (const char* format : kFormats) {
      if (std::string_view(method).starts_with("awq") && format != kFormats[0] && format != kFormats[3])
        continue;  // as gptq
      const std::string recipe = fmt::format("{} format={}", method, format);
      SCOPED_TRACE(recipe);
      QuantPlan plan;
      const std::string why = refusals_of(c, recipe, plan);
      const bool no_gguf = std::string_view(format) == "gguf" && family.gguf.arch.empty();
      if (const Refused* row = refused(method, format, family.name()); row || no_gguf) {
        EXPECT_NE(why.find(row ? row->words : family.gguf.why_not), std::string::npos) << why;
        continue;
      }
      ASSERT_EQ(why, "");
      const Windows windows = plan.calibrates() ? windows_from_ids(ids, 8, 32, "ids") : Windows{};
      const std::filesystem::path out = dir / fmt::format("out{}", written++);
      run_pipeline(ex, c, plan, windows, {.recipe = recipe, .out = out});
      const VerifyResult checked = verify(ex, out);
      for (const auto& problem : checked.problems) ADD_FAILURE() << problem.linear << ": " << problem.what;
      EXPECT_EQ(Checkpoint::open(out).spec.layers, c.spec.layers);
    }
  EXPECT_GE(written, 3);
}

INSTANTIATE_TEST_SUITE_P(All, FamilyMatrix, ::testing::ValuesIn(families()), [](const auto& info) {
  std::string name(info.param->name());
  for (char& ch : name)
    if (!std::isalnum(static_cast<unsigned char>(ch))) ch = '_';
  return name;
});

TEST(FamilyKeeps, FirstDenseLayersStayUnlessARuleNamesThem) {
  const TempDir dir;
  synthesize(dir / "m", {.config = tiny_config_of("Glm4MoeForCausalLM").dump()}, {});
  const Checkpoint c = Checkpoint::open(dir / "m");
  const std::string first = "model.layers.0.mlp.gate_proj";
  const QuantPlan plan = make_plan(c, {.base = parse_recipe("rtn")});
  EXPECT_FALSE(plan.find(first));
  for (const PlannedLinear& p : plan.linears) {
    const bool dense = p.linear.name.starts_with("model.layers.0.mlp.");
    EXPECT_EQ(p.keep, dense) << p.linear.name;
    EXPECT_EQ(p.note.find("no experts") != std::string::npos, dense) << p.note;
  }
  ASSERT_EQ(plan.kept.size(), 1u);
  EXPECT_EQ(plan.kept[0].first, "model.layers.1.mlp.gate");
  EXPECT_NE(plan.kept[0].reason.find("chooses the experts"), std::string::npos);
  const QuantPlan named =
      make_plan(c, {.base = parse_recipe("rtn"), .rules = {{"mlp.gate_proj", parse_recipe("int8 g128")}}});
  ASSERT_TRUE(named.find(first));
  EXPECT_EQ(named.find(first)->recipe.spec.bits, 8);
}

// Towers and layers that predict further tokens are no part of the op list: the plan says that they stay.
TEST(FamilyKeeps, WhatIsNotPartOfTheOpListIsInThePlan) {
  FEWBIT_NEEDS_REFERENCE("goldens/models/qwen3.5");
  const Checkpoint c = Checkpoint::open(reference("goldens/models/qwen3.5"));
  const QuantPlan plan = make_plan(c, {.base = parse_recipe("rtn int4 g16 format=compressed-tensors")});
  std::string all;
  for (const KeptGroup& k : plan.kept) {
    all += k.first + ": " + k.reason + "\n";
    EXPECT_GT(k.matrices, 0);
    EXPECT_GT(k.bytes, 0);
  }
  for (const char* words : {"mtp.", "predicts further tokens", "model.visual.", "of the vision tower",
                            "in_proj_b: a few outputs, each of which scales"})
    EXPECT_NE(all.find(words), std::string::npos) << words << " in\n" << all;
}

// Experts of a layer that predicts further tokens lie in stacks, which are no linears to us and are to loaders: the
// config lists them by every name that one may ask about.
TEST(FamilyKeeps, StacksOfExpertsThatTravelAreIgnored) {
  FEWBIT_NEEDS_REFERENCE("goldens/models/qwen3.5-moe");
  const Checkpoint c = Checkpoint::open(reference("goldens/models/qwen3.5-moe"));
  const QuantPlan plan = make_plan(c, {.base = parse_recipe("rtn int4 g16 format=compressed-tensors")});
  const std::string config = plan.format->write_config(summary_of(c, plan));
  for (const char* name : {"\"mtp.layers.0.mlp.experts\"", "\"mtp.layers.0.mlp.experts.5.gate_proj\"",
                           "\"mtp.layers.0.mlp.experts.0.up_proj\"", "\"mtp.layers.0.mlp.experts.3.down_proj\"",
                           "\"model.mtp.layers.0.mlp.experts.3.down_proj\""})
    EXPECT_NE(config.find(name), std::string::npos) << name;
  EXPECT_EQ(config.find("\"model.language_model.layers.0.mlp.experts"), std::string::npos) << "those are packed";
  int64_t matrices = 0;
  for (const KeptGroup& k : plan.kept)
    if (k.reason.find("predicts further tokens") != std::string::npos) matrices = k.matrices;
  EXPECT_EQ(matrices, 10 + 2 * 6) << "10 matrices, and two stacks of 6 experts";
}

// The reason that a plan gives is that of the tensor, not of one family's.
TEST(FamilyKeeps, EveryReasonIsTheTensorsOwn) {
  struct Case {
    const char *golden, *name, *reason;
  };
  for (const Case& k : {Case{"deepseek-v32-topk12", "self_attn.indexer.", "chooses the keys"},
                        Case{"deepseek-v4", "compressor.", "keys of blocks of tokens"},
                        Case{"kimi-linear", "f_a_proj", "scale every feature of a head"},
                        Case{"gemma4-e2b", "per_layer_input_gate", "what a token alone gives"},
                        Case{"qwen3.5", "in_proj_b", "a few outputs"}}) {
    const std::string golden = std::string("goldens/models/") + k.golden;
    FEWBIT_NEEDS_REFERENCE(golden);
    const Checkpoint c = Checkpoint::open(reference(golden));
    const QuantPlan plan = make_plan(c, {.base = parse_recipe("rtn int4 g16 format=compressed-tensors")});
    bool found = false;
    for (const KeptGroup& group : plan.kept)
      found |= group.first.find(k.name) != std::string::npos && group.reason.find(k.reason) != std::string::npos;
    EXPECT_TRUE(found) << k.golden << " " << k.name;
  }
}

// Where no rounding is learned the note says what of the block has no gradient.
TEST(FamilyKeeps, WhyNoRoundingIsLearned) {
  struct Case {
    const char *golden, *what;
  };
  for (const Case& k :
       {Case{"qwen3.5", "a delta rule"}, Case{"gemma4-e2b", "what a token alone gives"}, Case{"cohere2", "norms that"},
        Case{"qwen3-moe", "a mixture of experts"}, Case{"nemotron-h", "a state space"}}) {
    const std::string golden = std::string("goldens/models/") + k.golden;
    FEWBIT_NEEDS_REFERENCE(golden);
    const Checkpoint c = Checkpoint::open(reference(golden));
    const QuantPlan plan = make_plan(c, {.base = parse_recipe("gptq int3 g16 effort=best")});
    std::string all;
    for (const PlannedLinear& p : plan.linears) all += p.note + "\n";
    EXPECT_NE(all.find(std::string("no learned rounding in blocks with ") + k.what), std::string::npos)
        << k.golden << "\n"
        << all;
    EXPECT_EQ(all.find("experts") != std::string::npos,
              std::string(k.golden).find("moe") != std::string::npos || k.golden == std::string("nemotron-h"))
        << k.golden;
  }
}

}  // namespace
}  // namespace fewbit::test
