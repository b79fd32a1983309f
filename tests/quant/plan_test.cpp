// The plan decides before anything is computed: packings by shape and bits, bytes, refusals.
#include "src/quant/plan/plan.h"

#include <gtest/gtest.h>

#include <fstream>
#include <optional>

#include "src/model/synth/synth.h"
#include "tests/support/support.h"

namespace fewbit::test {
namespace {

class Plan : public ::testing::Test {
 protected:
  Plan() {
    synthesize(dir / "tiny", {.preset = "tiny"}, {});
    checkpoint.emplace(Checkpoint::open(dir / "tiny"));
  }
  QuantPlan plan(const std::string& recipe, std::vector<Rule> rules = {}) {
    return make_plan(*checkpoint, {.base = parse_recipe(recipe), .rules = std::move(rules), .tokens = 1024});
  }
  TempDir dir;
  std::optional<Checkpoint> checkpoint;
};

TEST_F(Plan, FourBitsGoToMarlinAndThreeToTheGeneralLayout) {
  for (const PlannedLinear& p : plan("gptq int4 g64").linears) EXPECT_EQ(p.packing->name, "marlin") << p.linear.name;
  for (const PlannedLinear& p : plan("gptq int3 g64").linears) EXPECT_EQ(p.packing->name, "gptq_v2") << p.linear.name;
}

TEST_F(Plan, RulesMatchFullAndShortNamesAndTheLastWins) {
  const QuantPlan p = plan("gptq int4 g64", {{"*.mlp.*", parse_recipe("int8")},
                                             {"mlp.up_proj", Recipe{.keep = true}},
                                             {"model.layers.1.mlp.up_proj", parse_recipe("int2")}});
  EXPECT_EQ(p.of("model.layers.0.mlp.down_proj").recipe.spec.bits, 8);
  EXPECT_TRUE(p.of("model.layers.0.mlp.up_proj").keep);
  EXPECT_EQ(p.of("model.layers.1.mlp.up_proj").recipe.spec.bits, 2);
  EXPECT_EQ(p.of("model.layers.0.self_attn.q_proj").recipe.spec.bits, 4);
}

TEST_F(Plan, ARuleThatMeansNothingIsRefusedWithWhatIsNear) {
  const auto refusal = [&](const std::string& glob, const Recipe& recipe) -> std::string {
    try {
      plan("rtn int4 g64", {{glob, recipe}});
    } catch (const Error& e) {
      EXPECT_EQ(e.kind(), ErrorKind::usage) << glob;
      EXPECT_EQ(std::string(e.what()).find('\n'), std::string::npos) << e.what();
      return e.what();
    }
    return "";
  };
  const Recipe int8 = parse_recipe("int8"), keep{.keep = true};
  const auto expect = [&](const std::string& glob, const Recipe& recipe, const std::string& part) {
    EXPECT_NE(refusal(glob, recipe).find(part), std::string::npos) << glob << ": " << refusal(glob, recipe);
  };
  expect("*.donw_proj", int8, "--set '*.donw_proj': no linear of ");
  expect("*.donw_proj", int8, "did you mean '*.down_proj'? names in a block: self_attn.q_proj ");
  expect("mlp.up_prj", keep, "--keep 'mlp.up_prj': no linear of ");
  expect("mlp.up_prj", keep, "did you mean 'mlp.up_proj'?");
  expect("model.layers.7.*", int8, "no linear of ");
  expect("*lm_head", int8, "lm_head is meant only by exactly its name: --set lm_head=");
  expect("*embed_tokens", keep, "model.embed_tokens is meant only by exactly its name: --keep model.embed_tokens; ");
  for (const char* glob : {"lm_head", "model.embed_tokens", "*", "*.mlp.*", "model.layers.1.*"})
    EXPECT_EQ(refusal(glob, keep), "") << glob;
  synthesize(dir / "moe", {.preset = "tiny-moe"}, {});
  checkpoint.emplace(Checkpoint::open(dir / "moe"));
  expect("mlp.expert.*", int8, "did you mean 'mlp.experts.*.");
  expect("mlp.gate", int8, "'model.layers.0.mlp.gate' is none of the linears that a recipe touches");
  EXPECT_EQ(refusal("mlp.gate", keep), "") << "a router stays as it is with or without the rule";
  EXPECT_EQ(refusal("mlp.experts.3.*", int8), "");
}

TEST_F(Plan, WhatAConfigCannotSayIsRefused) {
  EXPECT_TRUE(plan("rtn int4 g64 asym format=awq").refusals.empty());
  const QuantPlan mixed = plan("rtn int4 g64 asym format=awq", {{"*.down_proj", parse_recipe("g32")}});
  ASSERT_EQ(mixed.refusals.size(), 1u);
  EXPECT_EQ(mixed.refusals[0].name, "format awq");
  EXPECT_NE(mixed.refusals[0].reason.find("one group size"), std::string::npos);
  for (const PlannedLinear& p : plan("rtn nvfp4 format=modelopt").linears)
    EXPECT_EQ(p.packing, &packing_modelopt_nvfp4) << p.linear.name;
}

// K-quants where rows are whole blocks of 256, else the type of llama.cpp's choice, in whose place the method has codes
// too.
TEST_F(Plan, GptqHasBlocksOfGgufInEveryWidth) {
  const QuantPlan p = plan("gptq format=gguf:q4_k");
  EXPECT_TRUE(p.refusals.empty());
  for (const PlannedLinear& l : p.linears) {
    const bool whole = l.linear.in % 256 == 0;
    EXPECT_EQ(l.layout(), whole ? "q4_k" : "gguf_q5_0") << l.linear.name << ' ' << l.linear.in;
    EXPECT_EQ(l.note.find("q5_0 instead") == std::string::npos, whole) << l.note;
  }
  EXPECT_TRUE(has(p.needs, Needs::gram));
}

TEST_F(Plan, ForAGpuItSaysWhatTheCpuDoes) {
  for (const char* recipe : {"gptq nvfp4", "gptq format=gguf:q3_k", "gptq int4 g64", "rtn nvfp4"})
    for (const bool on_gpu : {false, true}) {
      const QuantPlan p = make_plan(*checkpoint, {.base = parse_recipe(recipe), .tokens = 1024, .on_gpu = on_gpu});
      const std::string& note = p.of("model.layers.0.mlp.up_proj").note;
      const bool levels = std::string(recipe).starts_with("gptq") && std::string(recipe) != "gptq int4 g64";
      EXPECT_EQ(note.find("works on the CPU") != std::string::npos, levels && on_gpu) << recipe << ": " << note;
    }
}

TEST_F(Plan, WhatAGgufFileCannotSayIsRefusedBeforeWork) {
  synthesize(dir / "moe", {.preset = "tiny-moe"}, {});
  const auto refusals = [&] {
    const Checkpoint c = Checkpoint::open(dir / "moe");
    return make_plan(c, {.base = parse_recipe("rtn format=gguf:q8_0"),
                         .rules = {{"*.experts.2.up_proj", parse_recipe("format=gguf:q4_0")}},
                         .tokens = 1024})
        .refusals;
  };
  ASSERT_EQ(refusals().size(), 1u);
  EXPECT_NE(refusals()[0].reason.find("stacks the experts"), std::string::npos) << refusals()[0].reason;
  std::string config;
  std::getline(std::ifstream(dir / "moe/config.json"), config, '\0');
  config.replace(config.find("\"norm_topk_prob\": true"), 22, "\"norm_topk_prob\": false");
  std::ofstream(dir / "moe/config.json") << config;
  ASSERT_EQ(refusals().size(), 1u);
  EXPECT_NE(refusals()[0].reason.find("norm_topk_prob"), std::string::npos) << refusals()[0].reason;
}

TEST_F(Plan, MatricesThatNoOpKnowsAreListedAsDense) {
  const CheckpointIndex index = container_safetensors.open(dir / "tiny");
  std::filesystem::create_directory(dir / "more");
  std::filesystem::copy_file(dir / "tiny/config.json", dir / "more/config.json");
  const auto writer = container_safetensors.create(dir / "more", {});
  for (const auto& [name, t] : index.tensors) writer->add(name, index.view(t));
  writer->add("mtp.head.weight", Tensor::host_zeros(DType::bf16, {4, 8}));
  writer->add("mtp.norm.weight", Tensor::host_zeros(DType::bf16, {8}));
  writer->finish();
  const Checkpoint more = Checkpoint::open(dir / "more");
  const QuantPlan p = make_plan(more, {.base = parse_recipe("rtn int4 g64")});
  EXPECT_EQ(summary_of(more, p).dense, std::vector<std::string>{"mtp.head"});
  EXPECT_TRUE(summary_of(*checkpoint, plan("rtn int4 g64")).dense.empty());
}

TEST_F(Plan, NeedsFollowTheMethodAndTheEffort) {
  EXPECT_EQ(plan("rtn").needs, Needs::nothing);
  EXPECT_TRUE(has(plan("gptq").needs, Needs::cross));
  EXPECT_FALSE(has(plan("gptq effort=reference").needs, Needs::cross)) << "the published algorithm knows one stream";
}

TEST_F(Plan, SumsThatNoMethodSolvesByAreOfSomeTokens) {
  constexpr int64_t kMany = 8 * kWeighingTokens;
  for (const char* recipe : {"fp8 acts=tensor", "smoothquant", "rtn w8a8 acts=tensor"})
    EXPECT_EQ(plan(recipe).summed(kMany), kWeighingTokens) << recipe;
  for (const char* recipe : {"gptq", "gptq targets=off", "awq", "gptq fp8", "smoothquant+gptq w8a8"})
    EXPECT_EQ(plan(recipe).summed(kMany), kMany) << recipe;
  EXPECT_EQ(plan("smoothquant").summed(100), 100);
}

TEST_F(Plan, TransformsNeedStatisticsAndAnAbsorber) {
  const QuantPlan p = plan("awq int4 g64");
  EXPECT_TRUE(has(p.needs, Needs::gram));
  EXPECT_TRUE(has(p.needs, Needs::cross)) << "what is rounded reproduces the unquantized output";
  EXPECT_FALSE(has(plan("awq int4 g64 effort=reference").needs, Needs::cross));
  EXPECT_GT(p.memory.host, plan("rtn int4 g64").memory.host);
  ASSERT_EQ(p.transforms.size(), 1u);
  EXPECT_TRUE(p.refusals.empty());
  for (BlockOp& op : checkpoint->spec.kinds[0])  // the states are read by the linears themselves
    if (auto* norm = std::get_if<Norm>(&op))
      norm->out = Slot::x;
    else if (auto* group = std::get_if<Linears>(&op))
      group->in = Slot::x;
  const QuantPlan idle = plan("awq int4 g64");
  ASSERT_EQ(idle.refusals.size(), 1u);
  EXPECT_NE(idle.refusals[0].reason.find("awq"), std::string::npos);
}

TEST_F(Plan, FewerBitsAreFewerBytes) {
  int64_t last = INT64_MAX;
  for (const char* recipe : {"rtn int8 g128", "rtn int4 g32", "rtn int4 g128", "rtn int3 g128", "rtn int2 g128"}) {
    const QuantPlan p = plan(recipe);
    EXPECT_LT(p.out_bytes, last) << recipe;
    EXPECT_TRUE(p.refusals.empty()) << recipe;
    last = p.out_bytes;
  }
}

TEST_F(Plan, ScalesOfACacheNeedCalibrationAndAFormat) {
  const QuantPlan p = plan("rtn int4 g64 kv=fp8"), without = plan("rtn int4 g64 format=compressed-tensors");
  EXPECT_TRUE(p.calibrates() && p.refusals.empty());
  EXPECT_FALSE(without.calibrates());
  EXPECT_EQ(p.out_bytes, without.out_bytes + checkpoint->spec.layers * 8);
  const QuantPlan marlin = plan("rtn int4 g64 kv=fp8 format=marlin");
  ASSERT_EQ(marlin.refusals.size(), 1u);
  EXPECT_NE(marlin.refusals[0].reason.find("compressed-tensors"), std::string::npos);
  EXPECT_THROW(plan("rtn int4 g64", {{"*", parse_recipe("kv=fp8")}}), Error);
}

TEST_F(Plan, EveryRefusalHasItsReason) {
  const QuantPlan p = plan("gptq int4 g64 asym format=bf16");
  EXPECT_EQ(p.refusals.size(), p.linears.size());
  for (const Refusal& r : p.refusals) EXPECT_FALSE(r.reason.empty()) << r.name;
}

}  // namespace
}  // namespace fewbit::test
