// Whole runs on the golden models of families whose blocks differ from Llama's: fused linears, norms behind linears,
// soft caps, two rotations. (tests/quant/moe_test.cpp has the mixtures of experts.)
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>
#include <set>

#include "src/core/digest.h"
#include "src/eval/perplexity.h"
#include "src/eval/verify.h"
#include "src/model/synth/synth.h"
#include "src/quant/loop/pipeline.h"
#include "tests/support/support.h"
#include "tests/support/tolerance.h"

namespace fewbit::test {
namespace {

struct Case {
  const char *model, *recipe;
};

// What is not a linear of the plan (vision towers, MTP layers, routers, rates, convolutions) has the bytes it had.
void expect_carried(const Checkpoint& from, const Checkpoint& to) {
  int64_t carried = 0;
  for (const auto& [name, info] : from.store.index().tensors) {
    const size_t dot = name.rfind('.');
    if (to.packed(name.substr(0, dot)) && name.substr(dot) == ".weight") continue;
    const TensorInfo* there = to.store.find(name);
    ASSERT_TRUE(there) << name;
    ++carried;
    const ConstTensorView a = from.store.get(name), b = to.store.get(name);
    EXPECT_TRUE(a.dtype == b.dtype && a.shape == b.shape && std::memcmp(a.data, b.data, a.bytes()) == 0) << name;
  }
  EXPECT_GT(carried, 0);
}

// Random models that enlarge what rounding does to their states: docs/families.md, "In bf16".
bool enlarges(const Checkpoint& c) {
  return has_state(c.spec) || c.spec.arch.starts_with("Gemma4") || c.spec.arch.starts_with("GptOss");
}

// The files of tokenizers and processors have the bytes they had, whatever stands in them: line ends, no end at all,
// numbers that are no JSON, bytes that are no text.
TEST(Companions, HaveTheBytesTheyHad) {
  const std::string folder = "goldens/models/qwen2.5-vl";
  FEWBIT_NEEDS_REFERENCE(folder + "/golden.safetensors");
  const TempDir dir;
  namespace fs = std::filesystem;
  fs::create_directory(dir / "m");
  for (const char* name : {"config.json", "model.safetensors"})
    fs::copy_file(reference(folder + "/" + name), dir / "m" / name);
  const std::map<std::string, std::string> files = {
      {"preprocessor_config.json",
       "{\r\n \"size\":{ \"shortest_edge\" : 3136 },\t\"rescale_factor\": 0.00392156862745098}"},
      {"processor_config.json", "{\"image_seq_len\": NaN,\n\n}\n\n"},
      {"generation_config.json", "{\"temperature\": 1e-06, \"eos_token_id\": [2, 1]}"},
      {"chat_template.jinja", "{% for m in messages %}\xC3\xA9{{ m }} \n\xFF{% endfor %}"}};
  for (const auto& [name, bytes] : files) std::ofstream(dir / "m" / name, std::ios::binary) << bytes;
  Exec ex = Exec::cpu();
  const Checkpoint c = Checkpoint::open(dir / "m");
  const std::string recipe = "rtn int4 g16 format=compressed-tensors";
  const QuantPlan plan = make_plan(c, {.base = parse_recipe(recipe)});
  run_pipeline(ex, c, plan, {}, {.recipe = recipe, .out = dir / "out"});
  for (const auto& [name, bytes] : files) {
    EXPECT_EQ(bytes_of_file(dir / "out" / name), bytes) << name;
    EXPECT_EQ(digest_of_file(dir / "out" / name), digest_of_file(dir / "m" / name)) << name;
  }
}

class FamilyRun : public ::testing::TestWithParam<Case> {};

TEST_P(FamilyRun, WritesItsOwnTensorsPackedAndRunsThem) {
  const std::string folder = std::string("goldens/models/") + GetParam().model;
  FEWBIT_NEEDS_REFERENCE(folder + "/golden.safetensors");
  Exec ex = Exec::cpu();
  const Checkpoint c = Checkpoint::open(reference(folder));
  const Tensor golden_ids = Golden(folder + "/golden.safetensors").get("input_ids");
  const std::vector<int32_t> ids(golden_ids.as<int32_t>(), golden_ids.as<int32_t>() + golden_ids.numel());
  const QuantPlan plan = make_plan(c, {.base = parse_recipe(GetParam().recipe), .tokens = golden_ids.numel()});
  EXPECT_TRUE(plan.refusals.empty());
  const TempDir dir;
  const Windows calibration =
      plan.calibrates() ? windows_from_ids(ids, golden_ids.rows(), golden_ids.cols(), "golden") : Windows{};
  const QuantReport report = run_pipeline(ex, c, plan, calibration, {.recipe = GetParam().recipe, .out = dir / "out"});
  const VerifyResult checked = verify(ex, dir / "out");
  EXPECT_TRUE(checked.ok()) << (checked.ok() ? "" : checked.problems[0].linear + checked.problems[0].what);

  const Checkpoint packed = Checkpoint::open(dir / "out");
  EXPECT_EQ(packed.spec.arch, c.spec.arch);
  std::set<std::string> names;
  for (const PlannedLinear& p : plan.linears)
    if (!p.keep) names.insert(p.linear.name);
  for (const std::string& name : names) EXPECT_TRUE(packed.packed(name)) << name;
  EXPECT_EQ(report.linears.size(), names.size());
  if (plan.transforms.empty()) expect_carried(c, packed);
  double loss = 0, rtn = 0;
  for (const LinearRecord& l : report.linears) {
    loss += l.loss;
    rtn += l.loss_rtn;
  }
  if (plan.linears[0].recipe.effort == Effort::reference) {  // else the targets are shifted: src/quant/method.h
    EXPECT_LE(loss, rtn);
  }

  const auto mean_nll = [&](const Checkpoint& model, Weights weights) {
    const std::vector<float> losses =
        Runner(ex, model, {.dtype = DType::f32, .weights = weights}).nll(ids, golden_ids.rows());
    return std::accumulate(losses.begin(), losses.end(), 0.0) / static_cast<double>(losses.size());
  };
  const double own = mean_nll(packed, Weights::packed);
  EXPECT_LE(std::fabs(std::exp(own - mean_nll(packed, Weights::reference)) - 1), tol::kPackedPerplexity);
  const bool chooses = std::any_of(c.spec.kinds.begin(), c.spec.kinds.end(),
                                   [](const auto& ops) { return key_choice_of(ops) != nullptr; });
  const double limit = enlarges(c) ? tol::kInt4LossEnlarged : chooses ? tol::kInt4LossChosen : tol::kInt4Loss;
  EXPECT_LE(std::fabs(own - mean_nll(c, Weights::packed)), limit);
}

std::string name_of_case(const ::testing::TestParamInfo<Case>& info) {
  std::string name = std::string(info.param.model) + "_" + info.param.recipe;
  for (char& ch : name)
    if (!std::isalnum(static_cast<unsigned char>(ch))) ch = '_';
  return name;
}

INSTANTIATE_TEST_SUITE_P(Goldens, FamilyRun,
                         ::testing::Values(Case{"gemma2", "rtn int4 g64"},
                                           Case{"gemma2", "gptq int4 g64 effort=reference"},
                                           Case{"gemma2", "awq int4 g64"}, Case{"gemma3", "rtn int4 g64"},
                                           Case{"gemma3", "gptq int4 g64 effort=reference"},
                                           Case{"gemma3", "awq+gptq int4 g64"}, Case{"phi3-fused", "rtn int4 g64"},
                                           Case{"phi3-fused", "gptq int4 g64 effort=reference"},
                                           Case{"phi3-fused", "awq int4 g64"}),
                         name_of_case);

std::vector<Case> recent() {
  std::vector<Case> cases;
  for (const char* model : {"qwen3-next",
                            "qwen3.5",
                            "qwen3.5-moe",
                            "qwen2-moe",
                            "seed-oss",
                            "smollm3",
                            "exaone4",
                            "olmo3",
                            "glm4",
                            "glm4-moe",
                            "minimax-m2",
                            "ernie4_5_moe",
                            "hunyuan-v1-dense",
                            "qwen2.5-vl",
                            "qwen3-vl",
                            "mistral3",
                            "granitemoe",
                            "cohere2",
                            "ministral3",
                            "gemma4",
                            "gemma4-moe",
                            "gemma4-e2b",
                            "gpt-oss-bf16",
                            "llama4-text",
                            "lfm2",
                            "nemotron-h",
                            "deepseek-v2-mla",
                            "deepseek-v3-mla",
                            "deepseek-v32-topk12",
                            "glm-moe-dsa",
                            "glm-moe-dsa-topk12",
                            "kimi-linear",
                            "deepseek-v4",
                            "granite",  // the last nine come from scripts/interop/goldens
                            "granite4",
                            "cohere",
                            "olmo2",
                            "ernie4_5",
                            "llava",
                            "gemma3-vision",
                            "qwen3-vl-moe",
                            "glm4v"})
    for (const char* recipe : {"rtn int4 g16 format=compressed-tensors", "gptq int4 g16 format=compressed-tensors"})
      cases.push_back({model, recipe});
  for (const char* model :
       {"qwen3.5", "qwen3.5-moe", "olmo3", "glm4-moe", "granitemoe", "cohere2", "llama4-text", "lfm2", "nemotron-h",
        "deepseek-v2-mla", "deepseek-v3-mla", "deepseek-v32-topk12", "glm-moe-dsa", "kimi-linear"})
    cases.push_back({model, "awq int4 g16 format=compressed-tensors"});
  for (const char* model : {"deepseek-v3-mla", "deepseek-v32-topk12", "glm-moe-dsa", "kimi-linear"})
    for (const char* recipe : {"awq+gptq int4 g16 format=compressed-tensors", "smoothquant"})
      cases.push_back({model, recipe});
  return cases;
}

INSTANTIATE_TEST_SUITE_P(Recent, FamilyRun, ::testing::ValuesIn(recent()), name_of_case);

// Layers that share a choice of keys: gptq keeps it from block to block; what looks at a block by itself is refused.
TEST(SharedChoice, TransformsWantWindowsThatChooseNothing) {
  const std::string folder = "goldens/models/glm-moe-dsa-topk12";
  FEWBIT_NEEDS_REFERENCE(folder + "/golden.safetensors");
  Exec ex = Exec::cpu();
  const Checkpoint c = Checkpoint::open(reference(folder));
  const std::vector<int32_t> ids(96, 7);
  const TempDir dir;
  const auto run = [&](const std::string& recipe, int64_t length) -> std::string {
    const QuantPlan plan = make_plan(c, {.base = parse_recipe(recipe + " int4 g16 format=compressed-tensors")});
    try {
      run_pipeline(ex, c, plan, windows_from_ids(ids, 96 / length, length, "ids"),
                   {.recipe = recipe, .out = dir / fmt::format("{}-{}", recipe, length)});
    } catch (const Error& e) {
      return e.what();
    }
    return "";
  };
  EXPECT_NE(run("awq", 48).find("give --seq-len 12"), std::string::npos);
  EXPECT_EQ(run("awq", 12), "");
  EXPECT_EQ(run("gptq", 48), "");
}

// LongRoPE's two tables: the codes are those of a model that has the one which the windows' length picks.
TEST(LongRope, CalibrationTakesTheTableOfItsWindows) {
  using nlohmann::json;
  constexpr int64_t kOriginal = 16;
  const TempDir dir;
  synthesize(dir / "m", {.preset = "tiny-phi3"}, {});
  json config = json::parse(std::ifstream(dir / "m/config.json"));
  config["original_max_position_embeddings"] = kOriginal;
  std::vector<double> within(32, 1), beyond;
  for (size_t i = 0; i < within.size(); ++i) beyond.push_back(static_cast<double>(2 * i + 1));
  int runs = 0;
  const auto hashes = [&](const json& rope, int64_t length) {
    config["rope_scaling"] = rope;
    std::ofstream(dir / "m/config.json") << config;
    const Checkpoint c = Checkpoint::open(dir / "m");
    std::vector<int32_t> ids;
    for (int32_t i = 0; i < 16 * length; ++i) ids.push_back(i * 7 % 512);
    const QuantPlan plan = make_plan(c, {.base = parse_recipe("awq+gptq int4 g64"), .tokens = 16 * length});
    Exec ex = Exec::cpu();
    std::vector<std::string> found;
    for (const LinearRecord& l : run_pipeline(ex, c, plan, windows_from_ids(ids, 16, length, "ids"),
                                              {.recipe = "", .out = dir / fmt::format("out{}", runs++)})
                                     .linears)
      found.push_back(fmt::format("{} {}", l.name, l.hash));
    return found;
  };
  const json both = {
      {"type", "longrope"}, {"short_factor", within}, {"long_factor", beyond}, {"attention_factor", 1.0}};
  const auto one = [](const std::vector<double>& factors) { return json{{"type", "factors"}, {"factors", factors}}; };
  const auto shorter = hashes(both, kOriginal), longer = hashes(both, 2 * kOriginal);
  EXPECT_EQ(shorter, hashes(one(within), kOriginal));
  EXPECT_EQ(longer, hashes(one(beyond), 2 * kOriginal));
  EXPECT_NE(longer, hashes(one(within), 2 * kOriginal));
}

}  // namespace
}  // namespace fewbit::test
