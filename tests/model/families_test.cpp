// The families of 2025 and 2026: what their configs say and what is refused by name, language models inside of larger
// ones, experts out of stacks.
#include <cstring>

#include "formats/container.h"
#include "src/model/stacked_experts.h"
#include "tests/model/archs_fixture.h"
#include "tests/support/support.h"
#include "tests/support/tiny_families.h"

namespace fewbit::test {
namespace {

json qwen3_5() {
  json c = llama();
  c["linear_num_key_heads"] = 2;
  c["linear_num_value_heads"] = 4;
  c["linear_key_head_dim"] = 16;
  c["linear_value_head_dim"] = 8;
  c["linear_conv_kernel_dim"] = 4;
  c["num_hidden_layers"] = 4;
  json whole = {{"architectures", {"Qwen3_5ForConditionalGeneration"}}, {"tie_word_embeddings", true}};
  c.erase("architectures");
  whole["text_config"] = c;
  return whole;
}

TEST(Families, ALanguageModelInsideOfALargerOne) {
  const ModelSpec s = spec_of(qwen3_5());
  EXPECT_EQ(s.arch, "Qwen3_5ForConditionalGeneration");
  EXPECT_EQ(s.prefix(1), "model.language_model.layers.1.");
  EXPECT_EQ(s.embed, "model.language_model.embed_tokens.weight");
  EXPECT_TRUE(s.tied());  // said of the whole
  json flat = qwen3_5()["text_config"];
  flat["architectures"] = {"Qwen3_5ForCausalLM"};
  EXPECT_EQ(spec_of(flat).prefix(1), "model.layers.1.");
}

TEST(Families, ThreeDeltaNetsToOneGatedAttention) {
  json c = qwen3_5();
  const auto attention = [](const ModelSpec& s) {
    std::string out;
    for (int64_t i = 0; i < s.layers; ++i) out += attention_of(s.block(i)) ? 'a' : 'd';
    return out;
  };
  EXPECT_EQ(attention(spec_of(c)), "ddda");
  c["text_config"]["full_attention_interval"] = 2;
  EXPECT_EQ(attention(spec_of(c)), "dada");
  c["text_config"]["layer_types"] = {"full_attention", "linear_attention", "linear_attention", "linear_attention"};
  EXPECT_EQ(attention(spec_of(c)), "addd");
  const ModelSpec s = spec_of(c);
  EXPECT_EQ(slot_features(s, s.block(1), Slot::conv), 2 * 2 * 16 + 4 * 8);
  EXPECT_EQ(slot_features(s, s.block(0), Slot::fused), 2 * 4 * 16);
  EXPECT_EQ(ops<Rope>(s, 0)[0].params.inv_freq.size(), 2u);  // a quarter of a head of 16
  std::vector<std::string> exact;
  for (const BlockOp& op : s.block(1))
    for (const SmallTensor& t : small_tensors_of(op))
      if (t.exact) exact.push_back(t.key());
  EXPECT_EQ(exact, (std::vector<std::string>{"linear_attn.conv1d", "linear_attn.A_log", "linear_attn.dt_bias"}));
  for (const NamedLinear& l : linears_of(s)) EXPECT_EQ(l.name.find("in_proj_a"), std::string::npos);
}

TEST(Families, ValuesThatChangeTheMathematicsAreRefusedByName) {
  const auto refused = [](json c, const char* key, const json& value) {
    c["text_config"][key] = value;
    return says(refusal(c, ErrorKind::unsupported), {key, "text_config"});
  };
  EXPECT_TRUE(refused(qwen3_5(), "attn_output_gate", false));
  EXPECT_TRUE(refused(qwen3_5(), "hidden_act", "gelu"));
  EXPECT_TRUE(refused(qwen3_5(), "layer_types", {"linear_attention", "full_attention", "mamba", "full_attention"}));
  json mistral = qwen3_5();
  mistral["architectures"] = {"Mistral3ForConditionalGeneration"};
  EXPECT_TRUE(refused(mistral, "model_type", "mistral9"));
  json glm = llama();
  glm["architectures"] = {"Glm4MoeForCausalLM"};
  glm["n_routed_experts"] = 8;
  glm["num_experts_per_tok"] = 3;
  glm["moe_intermediate_size"] = 32;
  EXPECT_EQ(ops<Moe>(spec_of(glm), 1)[0].score, RouterScore::sigmoid);
  glm["n_group"] = 4;
  EXPECT_TRUE(says(refusal(glm, ErrorKind::checkpoint), {"n_group", "topk_group", "8 experts"}));
}

TEST(Families, AnUnknownClassIsRefusedWithTheNearestFamily) {
  json c = llama();
  c["architectures"] = {"Qwen3_7ForConditionalGeneration"};
  EXPECT_TRUE(says(refusal(c, ErrorKind::unsupported),
                   {"Qwen3_7ForConditionalGeneration", "nearest family read here: Qwen3_5", "LlamaForCausalLM"}));
}

// Gemma 3 4B as it is published: its text_config leaves out whatever its class has by itself.
TEST(Families, Gemma3InsideAVisionModel) {
  const json c = {{"architectures", {"Gemma3ForConditionalGeneration"}},
                  {"model_type", "gemma3"},
                  {"eos_token_id", {1, 106}},
                  {"text_config",
                   {{"model_type", "gemma3_text"},
                    {"hidden_size", 2560},
                    {"intermediate_size", 10240},
                    {"num_hidden_layers", 34},
                    {"rope_scaling", {{"factor", 8.0}, {"rope_type", "linear"}}},
                    {"sliding_window", 1024}}}};
  const ModelSpec s = spec_of(c);
  EXPECT_EQ(s.prefix(1), "language_model.model.layers.1.");
  EXPECT_EQ(s.lm_head, "language_model.model.embed_tokens.weight");
  EXPECT_EQ(s.vocab, 262208);
  EXPECT_EQ(s.max_positions, 131072);
  const Attention sliding = ops<Attention>(s, 0)[0], full = ops<Attention>(s, 5)[0];
  EXPECT_EQ(sliding.heads, 8);
  EXPECT_EQ(sliding.kv_heads, 4);
  EXPECT_EQ(sliding.head_dim, 256);
  EXPECT_EQ(sliding.window, 1024);
  EXPECT_EQ(full.window, 0);
  EXPECT_EQ(ops<Rope>(s, 0)[0].params.inv_freq[0], 1);
  EXPECT_EQ(ops<Rope>(s, 5)[0].params.inv_freq[0], 1.0 / 8);
  EXPECT_LT(ops<Rope>(s, 5)[0].params.inv_freq[127] * 8, ops<Rope>(s, 0)[0].params.inv_freq[127]) << "theta 1e6, 1e4";
  EXPECT_FALSE(kept_outside(family_of(s), "vision_tower.vision_model.post_layernorm.weight").empty());
}

TEST(Families, LlavaLeavesOutTheSizesOfItsLanguageModel) {
  json c = {{"architectures", {"LlavaForConditionalGeneration"}},
            {"model_type", "llava"},
            {"text_config",
             {{"architectures", {"LlamaForCausalLM"}},
              {"model_type", "llama"},
              {"max_position_embeddings", 4096},
              {"rms_norm_eps", 1e-5},
              {"vocab_size", 32064}}}};
  const ModelSpec vicuna = spec_of(c);
  EXPECT_EQ(vicuna.hidden, 4096);
  EXPECT_EQ(vicuna.layers, 32);
  EXPECT_EQ(vicuna.vocab, 32064);
  EXPECT_EQ(ops<Attention>(vicuna, 0)[0].kv_heads, 32);
  c["text_config"]["model_type"] = "mistral";
  EXPECT_EQ(ops<Attention>(spec_of(c), 0)[0].kv_heads, 8);
}

TEST(Families, GlmInsideAVisionModel) {
  json text = llama();
  text.erase("architectures");
  text["model_type"] = "glm4v_text";
  text["rope_scaling"] = {{"rope_type", "default"}, {"mrope_section", {1, 1, 2}}};
  const json c = {{"architectures", {"Glm4vForConditionalGeneration"}}, {"model_type", "glm4v"}, {"text_config", text}};
  const ModelSpec s = spec_of(c);
  EXPECT_EQ(s.prefix(1), "model.language_model.layers.1.");
  EXPECT_EQ(ops<Rope>(s, 0)[0].params.inv_freq.size(), 4u);  // half of a head of 16
  EXPECT_FALSE(kept_outside(family_of(s), "model.visual.merger.proj.weight").empty());
}

// Every family of the registry: a value that it does not compute is refused by the key's name, in one line.
TEST(Families, AnotherFunctionOfTheMlpIsRefusedByEveryFamily) {
  for (const Family* family : families()) {
    if (family->name() == "Lfm2ForCausalLM") continue;  // whose code knows no other and reads no such key
    json c = tiny_config_of(family->name());
    json& text = c.contains("text_config") ? c["text_config"] : c;
    for (const char* key : {"hidden_act", "hidden_activation", "mlp_hidden_act"}) text[key] = "quick_gelu";
    const std::string why = refusal(c, ErrorKind::unsupported);
    EXPECT_TRUE(says(why, {"hidden_act", "\"quick_gelu\"", "supported"})) << family->name() << ": " << why;
    EXPECT_EQ(why.find('\n'), std::string::npos) << why;
  }
}

// Qwen3-VL's mixtures are published with inputs before outputs; transformers 5 saves them the other way round.
TEST(Families, StacksInEitherShape) {
  json c = tiny_config_of("Qwen3VLMoeForConditionalGeneration");
  c["text_config"]["num_hidden_layers"] = 1;
  const ModelSpec spec = spec_of(c);
  const Moe moe = ops<Moe>(spec, 0)[0];
  const int64_t width = moe.gate.out_features, hidden = moe.hidden;
  const std::string experts = "model.language_model.layers.0.mlp.experts.";
  const Tensor rows = random_normal(DType::bf16, {moe.experts, 2 * width, hidden}, 1);
  Tensor turned = Tensor::host(DType::bf16, {moe.experts, hidden, 2 * width});
  for (int64_t e = 0; e < moe.experts; ++e)
    for (int64_t i = 0; i < hidden; ++i)
      for (int64_t o = 0; o < 2 * width; ++o)
        turned.as<uint16_t>()[(e * hidden + i) * 2 * width + o] = rows.as<uint16_t>()[(e * 2 * width + o) * hidden + i];
  const TempDir dir;
  const auto write = [&](const std::string& name, const Tensor& stack) {
    const auto writer = container_safetensors.create(dir / name, {});
    writer->add(experts + "gate_up_proj", stack);
    writer->finish();
    return with_single_experts(spec, WeightStore::open(dir / name));
  };
  const WeightStore published = write("published", turned), saved = write("saved", rows);
  for (const char* name : {"0.gate_proj.weight", "3.up_proj.weight"}) {
    const ConstTensorView a = published.get(experts + name), b = saved.get(experts + name);
    ASSERT_EQ(a.shape, (Shape{width, hidden}));
    EXPECT_TRUE(a.shape == b.shape && std::memcmp(a.data, b.data, static_cast<size_t>(a.bytes())) == 0) << name;
  }
}

TEST(Families, ExpertsOutOfTheirStacks) {
  json c = qwen3_5();
  c["architectures"] = {"Qwen3_5MoeForConditionalGeneration"};
  json& text = c["text_config"];
  text["num_experts"] = 3;
  text["num_experts_per_tok"] = 2;
  text["moe_intermediate_size"] = 8;
  text["shared_expert_intermediate_size"] = 16;
  text["num_hidden_layers"] = 1;
  const ModelSpec spec = spec_of(c);
  const std::string experts = "model.language_model.layers.0.mlp.experts.";
  const TempDir dir;
  const Tensor stack = random_normal(DType::bf16, {3, 16, 64}, 1), down = random_normal(DType::bf16, {3, 64, 8}, 2);
  const auto write = [&](const std::string& name, const Tensor& gate_up) {
    const auto writer = container_safetensors.create(dir / name, {});
    writer->add(experts + "gate_up_proj", gate_up);
    writer->add(experts + "down_proj", down);
    writer->finish();
    return WeightStore::open(dir / name);
  };
  const WeightStore store = with_single_experts(spec, write("good", stack));
  EXPECT_FALSE(store.has(experts + "gate_up_proj"));
  const auto is = [&](const std::string& name, const Tensor& from, int64_t begin, int64_t bytes) {
    const ConstTensorView v = store.get(experts + name);
    return v.bytes() == bytes &&
           std::memcmp(v.data, static_cast<const uint8_t*>(from.view().data) + begin, static_cast<size_t>(bytes)) == 0;
  };
  EXPECT_TRUE(is("2.gate_proj.weight", stack, 2 * 16 * 64 * 2, 8 * 64 * 2));
  EXPECT_TRUE(is("2.up_proj.weight", stack, (2 * 16 + 8) * 64 * 2, 8 * 64 * 2));
  EXPECT_TRUE(is("1.down_proj.weight", down, 64 * 8 * 2, 64 * 8 * 2));
  try {
    with_single_experts(spec, write("bad", random_normal(DType::bf16, {3, 8, 64}, 1)));
    FAIL() << "a stack of another shape was taken";
  } catch (const Error& e) {
    EXPECT_TRUE(says(e.what(), {"gate_up_proj", "[3, 16, 64]", "[3, 8, 64]"})) << e.what();
  }
}

}  // namespace
}  // namespace fewbit::test
