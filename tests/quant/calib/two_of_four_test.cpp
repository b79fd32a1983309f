// sparse=2:4 as a whole: methods, recipe, plan, a run that is stopped and resumed.
#include <cmath>
#include <map>

#include "formats/two_of_four.h"
#include "src/model/checkpoint.h"
#include "src/model/synth/synth.h"
#include "src/quant/loop/pipeline.h"
#include "src/quant/plan/method_bytes.h"
#include "tests/quant/made_up_windows.h"
#include "tests/quant/workbench.h"
#include "tests/support/devices.h"
#include "tests/support/paths.h"
#include "tests/support/support.h"

namespace fewbit::test {
namespace {

constexpr Effort kEfforts[] = {Effort::reference, Effort::quick, Effort::standard, Effort::best};

MethodResult coded(Workbench& b, const Method& m, Effort effort, int64_t group = 128) {
  LinearJob job = b.job(4, group);
  job.two_of_four = true;
  job.effort = effort;
  return m.quantize(b.ex, job);
}

FEWBIT_DEVICE_TEST(Sparse, EveryEffortIsTwoOfFourAndBetterThanMagnitude) {
  Workbench b(ex, 64, 256, 21);
  const MethodResult magnitude = coded(b, method_rtn, Effort::standard);
  EXPECT_TRUE(two_of_four(magnitude.linear));
  std::map<Effort, double> loss;
  for (const Effort effort : kEfforts) {
    const MethodResult r = coded(b, method_gptq, effort);
    EXPECT_EQ(check(r.linear), "");
    EXPECT_TRUE(two_of_four(r.linear));
    EXPECT_EQ(r.rung, "fp32");
    EXPECT_LT(r.loss, 0.5 * magnitude.loss) << static_cast<int>(effort);  // inputs that hang together make up for much
    EXPECT_NEAR(r.loss_rtn, coded(b, method_rtn, Effort::reference).loss, 1e-3 * r.loss_rtn);
    const double truth =
        trace_loss(b.host_weight, dequantize_reference(r.linear), widened(b.ex.to_host(b.stats.gram))) / 500;
    EXPECT_NEAR(r.loss, truth, 1e-3 * truth);
    loss[effort] = r.loss;
  }
  EXPECT_LT(loss[Effort::standard], 0.9 * loss[Effort::reference]);
  EXPECT_LT(loss[Effort::standard], 0.9 * loss[Effort::quick]);
  EXPECT_LT(loss[Effort::best], 1.02 * loss[Effort::standard]);
}

FEWBIT_DEVICE_TEST(Sparse, GroupsOfEverySizeAndDeadInputs) {
  for (const int64_t group : {32, 64, 96, 128, 300, -1}) {
    Workbench b(ex, 20, 300, 22);
    Tensor h = b.ex.to_host(b.stats.gram);
    for (int64_t i = 0; i < 300; ++i) h.as<float>()[5 * 300 + i] = h.as<float>()[i * 300 + 5] = 0;
    b.stats.gram = b.ex.to_device(h);
    for (const Effort effort : kEfforts) {
      const MethodResult r = coded(b, method_gptq, effort, group);
      EXPECT_EQ(check(r.linear), "");
      EXPECT_TRUE(two_of_four(r.linear)) << group;
      EXPECT_LT(r.loss, r.loss_rtn) << group;
      for (int64_t o = 0; o < 20; ++o) EXPECT_EQ(r.linear.codes.as<uint8_t>()[o * 300 + 5], 8);
    }
  }
}

// Where the Gram matrix cannot be factored: by its diagonal, or by magnitude alone where that is permitted.
FEWBIT_DEVICE_TEST(Sparse, TheLastRungsAreTwoOfFourToo) {
  Workbench b(ex, 16, 64, 23);
  Tensor h = b.ex.to_host(b.stats.gram);
  for (int64_t i = 0; i < 64; ++i) h.as<float>()[i * 64 + (i + 1) % 64] = std::nanf("");
  b.stats.gram = b.ex.to_device(h);
  const MethodResult diagonal = coded(b, method_gptq, Effort::standard);
  EXPECT_EQ(diagonal.rung, "diagonal");
  EXPECT_TRUE(two_of_four(diagonal.linear));
  LinearJob job = b.job();
  job.stats = nullptr;
  job.two_of_four = job.allow_rtn = true;
  const MethodResult plain = method_gptq.quantize(b.ex, job);
  EXPECT_EQ(plain.rung, "rtn");
  EXPECT_TRUE(two_of_four(plain.linear));
}

std::string refused(const std::string& recipe) {
  try {
    resolve(parse_recipe(recipe));
  } catch (const Error& e) {
    EXPECT_EQ(e.kind(), ErrorKind::usage) << recipe;
    EXPECT_EQ(std::string(e.what()).find('\n'), std::string::npos) << recipe;
    return e.what();
  }
  return "";
}

TEST(Sparse, RecipesThatCannotBeAreRefusedInALine) {
  const std::pair<const char*, const char*> wrong[] = {
      {"gptq int3 sparse=2:4", "symmetric int4, found int3"},
      {"gptq int4 asym sparse=2:4", "symmetric int4, found int4 g128 asym"},
      {"gptq nvfp4 sparse=2:4", "symmetric int4, found nvfp4"},
      {"gptq int4 act=static sparse=2:4", "act=off"},
      {"gptq int4 act=full sparse=2:4", "act=off"},
      {"gptq int4 g30 sparse=2:4", "groups of whole fours"},
      {"gptq int4 acts=token4 sparse=2:4", "acts=off"},
      {"awq+gptq int4 sparse=2:4", "without a transform"},
      {"fp8 sparse=2:4", "gptq or rtn, found fp8"},
      {"auto sparse=2:4", "found auto"},
      {"gptq sparse=2:4 format=gguf:q4_0", "a format of codes"},
      {"gptq int4 sparse=1:2", "2:4"},
  };
  for (const auto& [recipe, why] : wrong)
    EXPECT_NE(refused(recipe).find(why), std::string::npos) << recipe << ": " << refused(recipe);
  const FullRecipe r = resolve(parse_recipe("gptq int4 g128 sparse=2:4"));
  EXPECT_EQ(r.str(), "gptq int4 g128 sym sparse=2:4");
  EXPECT_EQ(r.format, "marlin-24");
  EXPECT_EQ(resolve(parse_recipe(r.str())).str(), r.str());
  EXPECT_EQ(resolve(parse_recipe("gptq int4 sparse=off")).format, "marlin");
}

class SparsePlan : public ::testing::Test {
 protected:
  // 2 layers, hidden 128, 4 heads of 32 and 2 key/value heads: k and v have 64 outputs.
  SparsePlan() { synthesize(dir / "tiny", {.preset = "tiny"}, {}); }
  static QuantPlan plan(const Checkpoint& c, const std::string& recipe, const std::string& engine = "") {
    return make_plan(c, {.base = parse_recipe(recipe), .tokens = 32, .seq_len = 16, .engine = engine});
  }
  static std::string reasons(const QuantPlan& p) {
    std::string all;
    for (const Refusal& r : p.refusals) all += r.name + ": " + r.reason + "\n";
    return all;
  }
  QuantReport run(const Checkpoint& c, const std::string& recipe, const std::filesystem::path& out, QuantJob job = {}) {
    Exec ex = Exec::cpu();
    const Windows windows = made_up_windows(c.spec, 2, 16);
    job.recipe = recipe;
    job.out = out;
    return run_pipeline(ex, c, plan(c, recipe), windows, job);
  }
  TempDir dir;
};

TEST_F(SparsePlan, SaysWhatCannotBeWrittenAndWhatTakesItInstead) {
  const Checkpoint c = Checkpoint::open(dir / "tiny");
  const std::string narrow = reasons(plan(c, "gptq int4 g128 sparse=2:4"));
  EXPECT_NE(narrow.find("k_proj: ct_marlin_24: marlin-24 has N % 128 = 0"), std::string::npos) << narrow;
  EXPECT_NE(narrow.find("--format compressed-tensors"), std::string::npos) << narrow;
  EXPECT_EQ(narrow.find("q_proj"), std::string::npos) << narrow;
  for (const char* format : {"compressed-tensors", "gptq", "marlin"})
    EXPECT_EQ(reasons(plan(c, std::string("gptq int4 g32 sparse=2:4 format=") + format)), "") << format;
  const std::string dense = reasons(plan(c, "gptq int4 g128 format=marlin-24"));
  EXPECT_NE(dense.find("which sparse=2:4 (--sparse 2:4) makes"), std::string::npos) << dense;
  for (const char* engine : {"vllm", "sglang"}) {
    const std::string dropped = reasons(plan(c, "gptq int4 g128 sparse=2:4", engine));
    EXPECT_NE(dropped.find("format marlin-24"), std::string::npos) << dropped;
    EXPECT_NE(dropped.find("engines have dropped 2:4 sparsity"), std::string::npos) << dropped;
  }
  EXPECT_EQ(reasons(plan(c, "gptq int4 g32 sparse=2:4 format=compressed-tensors", "vllm")), "");
}

TEST_F(SparsePlan, InputsThatAreNoFoursAreRefused) {
  synthesize(dir / "odd", {.config = R"({"architectures":["LlamaForCausalLM"],"model_type":"llama","hidden_size":32,
      "intermediate_size":50,"num_hidden_layers":1,"num_attention_heads":2,"num_key_value_heads":2,"vocab_size":64,
      "max_position_embeddings":64,"rms_norm_eps":1e-5,"hidden_act":"silu","tie_word_embeddings":true})"},
             {});
  const std::string why =
      reasons(plan(Checkpoint::open(dir / "odd"), "rtn int4 gch sparse=2:4 format=compressed-tensors"));
  EXPECT_NE(why.find("down_proj: sparse=2:4 wants inputs in whole fours, here 50"), std::string::npos) << why;
  EXPECT_EQ(why.find("up_proj"), std::string::npos) << why;
}

// Every linear of OUT is 2:4, a run that weighs outputs too; stopped and resumed it is the same.
TEST_F(SparsePlan, InThePipeline) {
  const Checkpoint c = Checkpoint::open(dir / "tiny");
  const std::string recipe = "gptq int4 g32 sparse=2:4 format=compressed-tensors";
  const QuantReport whole = run(c, recipe, dir / "whole");
  run(c, recipe + " curvature=on", dir / "curved");
  for (const char* out : {"whole", "curved"}) {
    const Checkpoint made = Checkpoint::open(dir / out);
    int64_t linears = 0;
    for (const NamedLinear& l : made.linears()) {
      if (!made.packed(l.name)) continue;
      EXPECT_TRUE(two_of_four(made.unpack(l.name, l.out, l.in))) << l.name;
      ++linears;
    }
    EXPECT_EQ(linears, 14) << out;
  }
  for (const LinearRecord& l : whole.linears)
    EXPECT_NE(l.recipe.find("sparse=2:4"), std::string::npos) << l.name << ": " << l.recipe;
  int asked = 0;
  QuantJob job;
  job.stop_requested = [&] { return ++asked > 1; };
  EXPECT_THROW(run(c, recipe, dir / "out", job), Error);
  job.stop_requested = {};
  job.resume = true;
  const QuantReport resumed = run(c, recipe, dir / "out", job);
  ASSERT_EQ(resumed.linears.size(), whole.linears.size());
  for (size_t i = 0; i < whole.linears.size(); ++i)
    EXPECT_EQ(resumed.linears[i].hash, whole.linears[i].hash) << whole.linears[i].name;
}

// Random codes of the format are in 2:4 sparsity too.
TEST_F(SparsePlan, MadeUpModels) {
  const std::string config = bytes_of_file(in_source("calib_data/demo-model/config.json"));
  synthesize(dir / "made", {.config = config, .format = "marlin-24"}, {});
  const Checkpoint c = Checkpoint::open(dir / "made");
  int64_t linears = 0;
  for (const NamedLinear& l : c.linears())
    if (c.packed(l.name)) {
      EXPECT_TRUE(two_of_four(c.unpack(l.name, l.out, l.in))) << l.name;
      ++linears;
    }
  EXPECT_EQ(linears, 28);
}

// A sparse recipe makes new codes of a model that is int4 already: those it has are not sparse.
TEST_F(SparsePlan, CodesOfTheModelAreNotPassedOn) {
  const Checkpoint c = Checkpoint::open(dir / "tiny");
  run(c, "rtn int4 g32 format=compressed-tensors", dir / "int4");
  const Checkpoint packed = Checkpoint::open(dir / "int4");
  for (const PlannedLinear& p : plan(packed, "rtn int4 g32 format=compressed-tensors").linears)
    EXPECT_TRUE(p.lossless) << p.linear.name;
  for (const PlannedLinear& p : plan(packed, "rtn int4 g32 sparse=2:4 format=compressed-tensors").linears)
    EXPECT_FALSE(p.lossless) << p.linear.name;
}

}  // namespace
}  // namespace fewbit::test
