// Quantizing the ends of a model: the head on the final norm's output, the embedding row by row, tied or not.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <numeric>
#include <sstream>

#include "src/core/rng.h"
#include "src/eval/verify.h"
#include "src/quant/loop/pipeline.h"
#include "src/run/runner.h"
#include "tests/quant/made_up_windows.h"
#include "tests/support/support.h"
#include "tests/support/tolerance.h"

namespace fewbit::test {
namespace {

const std::string kUntied[] = {"llama", "qwen3-qknorm"};
const std::string kTied = "llama3-ropescaled-tied";

std::string folder(const std::string& model) { return "goldens/models/" + model; }

Windows windows_of(const ModelSpec& spec) { return made_up_windows(spec, 8, 64); }

PlanOptions options(const std::string& base, const std::vector<std::pair<std::string, std::string>>& rules) {
  PlanOptions o{.base = parse_recipe(base), .tokens = 512, .seq_len = 64};
  for (const auto& [glob, recipe] : rules) o.rules.push_back({glob, parse_recipe(recipe)});
  return o;
}

const LinearRecord* record_of(const QuantReport& r, const std::string& name) {
  const auto it = std::find_if(r.linears.begin(), r.linears.end(), [&](const auto& l) { return l.name == name; });
  return it == r.linears.end() ? nullptr : &*it;
}

double perplexity(Exec& ex, const Checkpoint& c, Weights weights) {
  std::vector<int32_t> ids;  // many: the two paths differ by roundings that a mean takes out
  for (uint64_t i = 0; i < 8192; ++i)
    ids.push_back(static_cast<int32_t>(mix64(i) % static_cast<uint64_t>(c.spec.vocab)));
  const std::vector<float> nll = Runner(ex, c, {.dtype = DType::bf16, .weights = weights}).nll(ids, 128);
  return std::exp(std::accumulate(nll.begin(), nll.end(), 0.0) / static_cast<double>(nll.size()));
}

struct Case {
  const char *recipe, *head, *embedding;
};

class Ends : public ::testing::TestWithParam<Case> {};

TEST_P(Ends, AreWrittenReadRunAndResumed) {
  FEWBIT_NEEDS_REFERENCE(folder(kUntied[0]) + "/config.json");
  Exec ex = Exec::cpu();
  for (const std::string& model : kUntied) {
    const Checkpoint c = Checkpoint::open(reference(folder(model)));
    const QuantPlan plan = make_plan(
        c, options(GetParam().recipe, {{"lm_head", GetParam().head}, {"model.embed_tokens", GetParam().embedding}}));
    ASSERT_TRUE(plan.refusals.empty()) << plan.refusals[0].name << plan.refusals[0].reason;
    const Windows windows = plan.calibrates() ? windows_of(c.spec) : Windows{};
    const TempDir dir;
    QuantJob job{.recipe = "test", .out = dir / "whole"};
    const QuantReport whole = run_pipeline(ex, c, plan, windows, job);
    EXPECT_EQ(whole.linears.size(), linears_of(c.spec).size() + 2);

    const LinearRecord* head = record_of(whole, "lm_head");
    ASSERT_NE(head, nullptr);
    ASSERT_NE(record_of(whole, "model.embed_tokens"), nullptr);
    if (plan.calibrates()) {
      EXPECT_EQ(head->tokens, 512) << "every token's final norm";
      EXPECT_LE(head->loss_target, head->loss_target_rtn) << model;
      EXPECT_GT(head->loss_target, 0);
    }

    const Checkpoint packed = Checkpoint::open(job.out);
    EXPECT_TRUE(packed.packed("lm_head"));
    EXPECT_TRUE(packed.packed("model.embed_tokens"));
    for (const char* matrix : {"lm_head.weight", "model.embed_tokens.weight"})
      if (const TensorInfo* t = packed.store.find(matrix)) {
        EXPECT_EQ(bytes_of(t->dtype), 1) << "left behind: " << matrix;
      }
    const VerifyResult checked = verify(ex, job.out);
    EXPECT_TRUE(checked.ok()) << (checked.ok() ? "" : checked.problems[0].linear + checked.problems[0].what);
    EXPECT_EQ(checked.linears, static_cast<int64_t>(whole.linears.size()));
    const double fast = perplexity(ex, packed, Weights::packed), exact = perplexity(ex, packed, Weights::reference);
    EXPECT_LE(std::fabs(fast / exact - 1), tol::kPackedPerplexity) << model;

    job.out = dir / "resumed";
    int asked = 0;
    job.stop_requested = [&] { return ++asked > 1; };
    EXPECT_THROW(run_pipeline(ex, c, plan, windows, job), Error);
    job.stop_requested = {};
    job.resume = true;
    run_pipeline(ex, c, plan, windows, job);
    EXPECT_EQ(bytes_of_file(dir / "resumed/model.safetensors"), bytes_of_file(dir / "whole/model.safetensors"));
  }
}

INSTANTIATE_TEST_SUITE_P(Formats, Ends,
                         ::testing::Values(Case{"gptq int4 g32", "int8 g128", "int8 g64"},
                                           Case{"gptq int4 g128 format=gptq", "int4 g64", "int8"},
                                           Case{"awq int4 g32 format=compressed-tensors", "int8", "int4 g64 sym"},
                                           Case{"rtn int4 g32", "gptq int4 g32", "rtn int4 g32"},
                                           Case{"smoothquant", "w8a8", "int8"}, Case{"fp8", "fp8", "fp8"}),
                         [](const auto& info) {
                           std::string name = info.param.recipe;
                           for (char& ch : name)
                             if (!std::isalnum(static_cast<unsigned char>(ch))) ch = '_';
                           return name;
                         });

// Error feedback on the final norm's output is worth something to the head.
TEST(Ends, TheHeadIsCalibrated) {
  FEWBIT_NEEDS_REFERENCE(folder("llama") + "/config.json");
  Exec ex = Exec::cpu();
  const Checkpoint c = Checkpoint::open(reference(folder("llama")));
  const TempDir dir;
  const auto loss = [&](const std::string& recipe) {
    PlanOptions o = options("gptq int4 g128", {{"lm_head", recipe}});
    const QuantReport r =
        run_pipeline(ex, c, make_plan(c, o), windows_of(c.spec), {.recipe = "test", .out = dir / recipe});
    return record_of(r, "lm_head")->loss_target;
  };
  EXPECT_LT(loss("gptq int3 g64"), loss("rtn int3 g64"));
}

TEST(Ends, OnlyTheirNameMeansThem) {
  FEWBIT_NEEDS_REFERENCE(folder("llama") + "/config.json");
  const Checkpoint c = Checkpoint::open(reference(folder("llama")));
  const QuantPlan all = make_plan(c, options("rtn int4 g32", {{"*", "int8"}, {"*.*", "int8"}}));
  EXPECT_EQ(all.find("lm_head"), nullptr);
  EXPECT_EQ(all.find("model.embed_tokens"), nullptr);
  EXPECT_THROW(make_plan(c, options("rtn int4 g32", {{"lm_*", "int8"}})), Error) << "it means nothing else";
  const QuantPlan kept = make_plan(c, options("rtn int4 g32", {{"lm_head", "int8"}, {"lm_head", "keep"}}));
  EXPECT_EQ(kept.find("lm_head"), nullptr);
  const QuantPlan head = make_plan(c, options("rtn int4 g32", {{"lm_head", "int8"}}));
  ASSERT_NE(head.find("lm_head"), nullptr);
  EXPECT_EQ(head.find("lm_head")->recipe.spec.bits, 8);
  EXPECT_LT(head.out_bytes, kept.out_bytes);
}

TEST(Ends, FormatsWithoutAWordForThemRefuse) {
  FEWBIT_NEEDS_REFERENCE(folder("llama") + "/config.json");
  const Checkpoint c = Checkpoint::open(reference(folder("llama")));
  const QuantPlan plan = make_plan(c, options("awq int4 g32 format=awq", {{"lm_head", "int4"}}));
  ASSERT_EQ(plan.refusals.size(), 1u);
  EXPECT_EQ(plan.refusals[0].name, "lm_head");
  EXPECT_NE(plan.refusals[0].reason.find("format awq"), std::string::npos) << plan.refusals[0].reason;
}

// One matrix for both ends: the head has no codes of its own, the embedding's serve it.
TEST(Ends, TiedOnesAreOneMatrix) {
  FEWBIT_NEEDS_REFERENCE(folder(kTied) + "/config.json");
  Exec ex = Exec::cpu();
  const Checkpoint c = Checkpoint::open(reference(folder(kTied)));
  const QuantPlan refused = make_plan(c, options("rtn int4 g32", {{"lm_head", "int8"}}));
  ASSERT_EQ(refused.refusals.size(), 1u);
  EXPECT_NE(refused.refusals[0].reason.find("tied to model.embed_tokens"), std::string::npos)
      << refused.refusals[0].reason;

  const QuantPlan plan = make_plan(c, options("gptq int8 g128", {{"model.embed_tokens", "int8 g128"}}));
  const TempDir dir;
  run_pipeline(ex, c, plan, windows_of(c.spec), {.recipe = "test", .out = dir / "out"});
  const Checkpoint packed = Checkpoint::open(dir / "out");
  EXPECT_TRUE(packed.spec.tied());
  EXPECT_TRUE(packed.packed("model.embed_tokens"));
  EXPECT_TRUE(verify(ex, dir / "out").ok());
  EXPECT_LE(std::fabs(perplexity(ex, packed, Weights::packed) / perplexity(ex, c, Weights::packed) - 1),
            tol::kLogitsBf16);
}

}  // namespace
}  // namespace fewbit::test
