// What an engine would not load is refused by name; what it loads is not.
#include "src/quant/plan/engines.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <optional>

#include "formats/checkpoint_format.h"
#include "src/model/synth/synth.h"
#include "tests/support/support.h"
#include "tests/support/tiny_families.h"

namespace fewbit::test {
namespace {

// "tiny": 2 layers, hidden 128, 4 heads of 32 and 2 key/value heads, 256 wide.
class Engines : public ::testing::Test {
 protected:
  Engines() { open("tiny"); }
  void open(const std::string& preset) {
    synthesize(dir / preset, {.preset = preset}, {});
    checkpoint.emplace(Checkpoint::open(dir / preset));
  }
  void open_family(const std::string& class_name) {
    synthesize(dir / class_name, {.config = tiny_config_of(class_name).dump()}, {});
    checkpoint.emplace(Checkpoint::open(dir / class_name));
  }
  QuantPlan plan(const std::string& recipe, const std::string& engine, int64_t tp = 1, std::vector<Rule> rules = {}) {
    return make_plan(
        *checkpoint,
        {.base = parse_recipe(recipe), .rules = std::move(rules), .tokens = 1024, .engine = engine, .tp = tp});
  }
  static std::vector<std::string> refused(const QuantPlan& p) {
    std::vector<std::string> names;
    for (const Refusal& r : p.refusals) {
      EXPECT_FALSE(r.reason.empty()) << r.name;
      names.push_back(r.name);
    }
    return names;
  }
  static std::vector<std::string> in_both_layers(std::initializer_list<const char*> linears) {
    std::vector<std::string> names;
    for (const char* layer : {"model.layers.0.", "model.layers.1."})
      for (const char* l : linears) names.push_back(layer + std::string(l));
    return names;
  }
  static size_t notes(const QuantPlan& p, const std::string& part) {
    return static_cast<size_t>(std::count_if(p.linears.begin(), p.linears.end(), [&](const PlannedLinear& l) {
      return l.note.find(part) != std::string::npos;
    }));
  }
  TempDir dir;
  std::optional<Checkpoint> checkpoint;
};

using Names = std::vector<std::string>;

TEST_F(Engines, EveryRowNamesThingsThatExistAndItsSource) {
  for (const EngineRules& e : engines()) {
    EXPECT_FALSE(e.version.empty() || e.source.empty()) << e.name;
    EXPECT_TRUE(std::any_of(format_rules().begin(), format_rules().end(),
                            [&](const FormatRule& r) { return r.engine == e.name; }))
        << e.name << " loads nothing";
  }
  for (const FormatRule& r : format_rules()) {
    EXPECT_NO_THROW(engine_rules(r.engine)) << r.engine;
    const CheckpointFormat& format = checkpoint_format(r.format);
    EXPECT_FALSE(r.source.empty()) << r.engine << " " << r.format;
    EXPECT_TRUE(r.packing.empty() || packing(r.packing).name == r.packing) << format.name;
  }
  EXPECT_THROW(engine_rules("abacus"), Error);
}

TEST_F(Engines, AFormatThatNobodyElseReadsIsOneRefusal) {
  for (const EngineRules& e : engines()) {
    const QuantPlan p = plan("rtn int4 g64 format=marlin", std::string(e.name));
    ASSERT_EQ(refused(p), Names{"format marlin"}) << e.name;
    EXPECT_NE(p.refusals[0].reason.find("--format"), std::string::npos) << p.refusals[0].reason;
  }
  EXPECT_TRUE(plan("rtn format=gguf:q4_0", "llama.cpp", 3).refusals.empty()) << "layers are shared, not linears";
  EXPECT_EQ(refused(plan("rtn int4 g32 format=gptq", "llama.cpp")), Names{"format gptq"});
  EXPECT_EQ(refused(plan("rtn format=gguf:q4_0", "vllm")), Names{"format gguf"});
}

TEST_F(Engines, BitsGridsGroupsAndOrdersAreTheEngines) {
  const size_t all = linears_of(checkpoint->spec).size();
  const auto count = [&](const char* recipe, const char* engine) { return plan(recipe, engine).refusals.size(); };
  for (const char* engine : {"vllm", "sglang", "transformers"}) {
    EXPECT_EQ(count("rtn int4 g64 format=gptq", engine), 0u) << engine;
    EXPECT_EQ(count("rtn int4 g64 asym format=awq", engine), 0u) << engine;
    EXPECT_EQ(count("rtn w8a8", engine), 0u) << engine;
    EXPECT_EQ(count("fp8", engine), 0u) << engine;
  }
  EXPECT_EQ(count("rtn int3 g64 format=gptq", "vllm"), all);
  EXPECT_EQ(count("rtn int3 g64 format=gptq", "transformers"), 0u);
  EXPECT_EQ(count("rtn int4 g64 asym format=gptq", "vllm"), all);
  EXPECT_EQ(count("rtn int4 g64 asym format=compressed-tensors", "vllm"), 0u);
  EXPECT_EQ(count("rtn int4 g16 format=gptq", "vllm"), all);
  EXPECT_EQ(count("rtn int4 g16 format=gptq", "transformers"), 0u);
  EXPECT_EQ(count("gptq int4 g64 act=full format=gptq", "vllm"), all);
  EXPECT_EQ(count("gptq int4 g64 act=full format=gptq", "sglang"), 0u);
  EXPECT_EQ(count("gptq int4 g64 act=static format=gptq", "vllm"), 0u);
  EXPECT_EQ(count("rtn mxfp4", "vllm"), 0u);
  EXPECT_EQ(count("rtn mxfp4", "sglang"), all);
  EXPECT_EQ(count("fp8", "tensorrt-llm"), 0u);
  EXPECT_EQ(count("fp8 acts=off", "tensorrt-llm"), all) << "weights alone are not taken";
  EXPECT_EQ(count("rtn w8a8", "tensorrt-llm"), all);
  EXPECT_EQ(count("fp8 tensor format=fp8", "tensorrt-llm"), all) << "only blocks";
  EXPECT_EQ(refused(plan("fp8 block128 format=fp8", "tensorrt-llm")),
            in_both_layers({"self_attn.k_proj", "self_attn.v_proj"}))
      << "q, k and v are one linear, and k and v end within a block";
}

TEST_F(Engines, LinearsThatRunAsOneNeedOneScheme) {
  const std::string recipe = "rtn int4 g64 format=compressed-tensors";
  const std::vector<Rule> k8 = {{"self_attn.k_proj", parse_recipe("int8")}};
  for (const char* engine : {"vllm", "sglang"})
    EXPECT_EQ(refused(plan(recipe, engine, 1, k8)), in_both_layers({"self_attn.k_proj"})) << engine;
  EXPECT_TRUE(plan(recipe, "transformers", 1, k8).refusals.empty());
  EXPECT_EQ(refused(plan(recipe, "vllm", 1, {{"mlp.up_proj", Recipe{.keep = true}}})), in_both_layers({"mlp.up_proj"}));
  EXPECT_TRUE(plan(recipe, "vllm", 1, {{"mlp.down_proj", parse_recipe("int8")}}).refusals.empty());
  open("tiny-moe");
  EXPECT_EQ(refused(plan(recipe, "vllm", 1, {{"mlp.experts.3.down_proj", Recipe{.keep = true}}})),
            in_both_layers({"mlp.experts.3.down_proj"}));
  EXPECT_TRUE(plan(recipe, "vllm", 1, {{"mlp.experts.*", Recipe{.keep = true}}}).refusals.empty());
}

TEST_F(Engines, EveryGpuGetsWholeHeadsGroupsAndTiles) {
  const std::string g64 = "rtn int4 g64 format=gptq", g128 = "rtn int4 g128 format=gptq";
  EXPECT_TRUE(plan(g64, "vllm", 2).refusals.empty());
  EXPECT_EQ(refused(plan(g128, "vllm", 2)), in_both_layers({"self_attn.o_proj"})) << "64 of 128 inputs each";
  EXPECT_EQ(refused(plan(g64, "vllm", 4)), in_both_layers({"self_attn.o_proj"}))
      << "the heads come out even: two GPUs share a key/value head";
  EXPECT_EQ(refused(plan(g64, "vllm", 3))[0], checkpoint->spec.arch);
  // Shares that are no multiple of Marlin's 64 x 128: padded in one engine, refused in the other.
  EXPECT_EQ(notes(plan(g64, "vllm", 2), "pads"), 0u) << "128 outputs by 64 inputs is a tile as well";
  const QuantPlan padded = plan("rtn int4 g32 format=gptq", "vllm", 4);
  EXPECT_TRUE(padded.refusals.empty());
  EXPECT_EQ(notes(padded, "pads"), 8u) << "q, k and v have 96 outputs together, o has 32 inputs";
  const QuantPlan strict = plan(g64, "sglang", 2);
  EXPECT_EQ(refused(strict), in_both_layers({"self_attn.o_proj"}));
  EXPECT_NE(strict.refusals[0].reason.find("tile is 64 outputs by 128 inputs"), std::string::npos)
      << strict.refusals[0].reason;
  EXPECT_EQ(notes(plan("rtn int4 g64 asym format=awq", "sglang", 2), "slower kernel"), 2u);
  EXPECT_EQ(refused(plan("fp8 block128", "vllm", 2)),
            in_both_layers({"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj"}))
      << "no part of a head holds whole blocks";
  EXPECT_EQ(plan(g64, "transformers", 2).refusals.size(), 14u) << "packed weights are not split there";
}

TEST_F(Engines, ALinearBehindAMixerIsCutAlongItsInputs) {
  open_family("Lfm2ForCausalLM");
  const QuantPlan conv = plan("rtn int4 g32 format=gptq", "vllm", 4);
  EXPECT_NE(conv.of("model.layers.0.conv.out_proj").note.find("share is 128 x 32"), std::string::npos)
      << conv.of("model.layers.0.conv.out_proj").note;
  EXPECT_NE(conv.of("model.layers.0.conv.in_proj").note.find("share is 96 x 128"), std::string::npos)
      << conv.of("model.layers.0.conv.in_proj").note;
  EXPECT_EQ(refused(plan("rtn int4 g64 format=gptq", "vllm", 4)),
            (Names{"model.layers.0.conv.out_proj", "model.layers.1.self_attn.out_proj"}))
      << "32 inputs each";
  open_family("DeepseekV4ForCausalLM");
  const QuantPlan shared = plan("rtn int4 g32 format=compressed-tensors", "vllm", 4);
  EXPECT_NE(shared.of("layers.0.attn.wo_b").note.find("share is 128 x 32"), std::string::npos)
      << shared.of("layers.0.attn.wo_b").note;
}

TEST_F(Engines, RecurrentHeadsAreWholeToo) {
  const std::string recipe = "rtn int4 g32 format=compressed-tensors";
  for (const char* family : {"Qwen3NextForCausalLM", "GraniteMoeHybridForCausalLM"}) {
    open_family(family);
    const bool delta = family == std::string("Qwen3NextForCausalLM");
    EXPECT_TRUE(plan(recipe, "vllm", 2).refusals.empty()) << family << plan(recipe, "vllm", 2).refusals[0].reason;
    // Two key heads of the delta nets on four GPUs; 32 heads in one group go to four, and not to three.
    const QuantPlan uneven = plan(recipe, "sglang", delta ? 4 : 3);
    ASSERT_FALSE(uneven.refusals.empty());
    EXPECT_NE(
        uneven.refusals[0].reason.find(delta ? "2 key and 4 value heads of its delta nets" : "32 heads in 1 groups"),
        std::string::npos)
        << uneven.refusals[0].reason;
  }
}

TEST_F(Engines, ExpertsHaveTheirOwnTile) {
  open("tiny-moe");  // experts 128 wide
  const std::string part = "check_moe_marlin_supports_layer";
  const std::string g32 = "rtn int4 g32 format=gptq", g64 = "rtn int4 g64 format=compressed-tensors";
  EXPECT_EQ(notes(plan(g32, "vllm"), part), 0u);
  EXPECT_EQ(notes(plan(g64, "vllm", 2), part), 0u) << "64 a GPU";
  const QuantPlan narrow = plan(g32, "vllm", 4);
  EXPECT_EQ(notes(narrow, part), 24u) << "32 a GPU, of four experts in two layers";
  EXPECT_NE(narrow.of("model.layers.0.mlp.experts.0.down_proj").note.find("one of 64, and here they are 128 and 32"),
            std::string::npos)
      << narrow.of("model.layers.0.mlp.experts.0.down_proj").note;
  EXPECT_EQ(notes(plan("rtn int4 g16 asym format=awq", "vllm"), part), 24u) << "no group of Marlin's";
}

TEST_F(Engines, EmbeddingsHeadsAndCachesThatAreNotTaken) {
  const auto embedding = [&](const char* recipe, const char* engine, const char* rule = "int8 g64") {
    return plan(recipe, engine, 1, {{"model.embed_tokens", parse_recipe(rule)}});
  };
  const Names only{"model.embed_tokens"};
  for (const char* engine : {"vllm", "sglang", "transformers"})
    EXPECT_EQ(refused(embedding("rtn int4 g64 format=gptq", engine)), only) << engine;
  const char* packed = "rtn int4 g64 format=compressed-tensors";
  EXPECT_EQ(refused(embedding(packed, "sglang")), only);
  EXPECT_EQ(refused(embedding(packed, "vllm", "int8 g64 asym")), only);
  EXPECT_EQ(refused(embedding(packed, "vllm", "rtn nvfp4")), only);
  const QuantPlan integers = embedding(packed, "vllm");
  EXPECT_TRUE(integers.refusals.empty());
  EXPECT_NE(integers.of("model.embed_tokens").note.find("only in families"), std::string::npos);
  EXPECT_TRUE(embedding(packed, "transformers").refusals.empty());
  EXPECT_TRUE(embedding("rtn format=gguf:q4_0", "llama.cpp", "format=gguf:q4_0").refusals.empty());
  EXPECT_TRUE(plan("rtn int4 g64 format=gptq", "vllm", 1, {{"lm_head", parse_recipe("int8")}}).refusals.empty());
  EXPECT_EQ(refused(plan("rtn int4 g64 format=gptq", "vllm", 1, {{"lm_head", parse_recipe("int3")}})),
            Names{"lm_head"});
  EXPECT_NE(plan("fp8 kv=fp8", "sglang").engine_note.find("passes the scales of kv=fp8 by"), std::string::npos);
  for (const char* engine : {"vllm", "tensorrt-llm"}) EXPECT_EQ(plan("fp8 kv=fp8", engine).engine_note, "") << engine;
  EXPECT_EQ(plan("fp8", "sglang").engine_note, "");
}

TEST_F(Engines, NobodyAskedNothingSaid) {
  EXPECT_TRUE(plan("rtn int4 g64 format=marlin", "", 7).refusals.empty());
  EXPECT_TRUE(plan("rtn int4 g64 format=marlin", "").engine.empty());
  EXPECT_EQ(plan("rtn int4 g64 format=gptq", "vllm", 2).tp, 2);
}

}  // namespace
}  // namespace fewbit::test
