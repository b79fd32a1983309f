// Families whose blocks differ from Llama's in factors, in what a layer sees, in what it takes from other layers, or in
// having a mixer alone: what their configs say of that, and what is refused by name.
#include <cstring>
#include <limits>

#include "formats/container.h"
#include "src/model/op_slots.h"
#include "src/model/stacked_experts.h"
#include "tests/model/archs_fixture.h"
#include "tests/support/support.h"

namespace fewbit::test {
namespace {

json of_class(const char* name) {
  json c = llama();
  c["architectures"] = {name};
  return c;
}

TEST(Granite, FourMultipliers) {
  json c = of_class("GraniteForCausalLM");
  c["embedding_multiplier"] = 12;
  c["attention_multiplier"] = 0.015625;
  c["residual_multiplier"] = 0.22;
  c["logits_scaling"] = 8;
  const ModelSpec s = spec_of(c);
  EXPECT_EQ(s.embed_scale, 12.f);
  EXPECT_EQ(s.logit_scale, 0.125f);
  EXPECT_EQ(ops<Attention>(s, 0)[0].scale, 0.015625f);
  for (const AddTo& add : ops<AddTo>(s, 1)) EXPECT_EQ(add.factor, 0.22f);
  c["logits_scaling"] = 0;
  EXPECT_TRUE(says(refusal(c, ErrorKind::checkpoint), {"logits_scaling", "above 0"}));
}

TEST(Granite, AHybridHasStateSpacesAttentionAndAnMlpBesideItsExperts) {
  json c = of_class("GraniteMoeHybridForCausalLM");
  c["layer_types"] = {"mamba", "attention", "mamba"};
  c["mamba_n_heads"] = 8;
  c["mamba_d_head"] = 16;
  c["mamba_d_state"] = 32;
  c["mamba_n_groups"] = 2;
  c["shared_intermediate_size"] = 40;
  c["residual_multiplier"] = 0.22;
  c["num_local_experts"] = 4;
  c["num_experts_per_tok"] = 2;
  const ModelSpec s = spec_of(c);
  EXPECT_EQ(ops<StateScan>(s, 0).size(), 1u);
  EXPECT_EQ(ops<HeadNorm>(s, 0)[0].head_dim, 8 * 16);  // over all features at once
  EXPECT_TRUE(attention_of(s.block(1)));
  EXPECT_TRUE(ops<Rope>(s, 1).empty());
  EXPECT_EQ(slot_features(s, s.block(1), Slot::gate_up), 2 * 40);
  for (int64_t layer = 0; layer < 3; ++layer)
    for (const AddTo& add : ops<AddTo>(s, layer)) EXPECT_EQ(add.factor, add.out == Slot::x ? 0.22f : 1.f) << layer;
  EXPECT_EQ(ops<Moe>(s, 0)[0].out, Slot::h);
  c["position_embedding_type"] = "rope";
  EXPECT_EQ(ops<Rope>(spec_of(c), 1).size(), 1u);
  c["num_local_experts"] = 0;
  EXPECT_TRUE(ops<Moe>(spec_of(c), 0).empty());
}

TEST(Cohere, LayersThatSeeEverythingDoNotTurn) {
  json c = of_class("Cohere2ForCausalLM");
  c["sliding_window"] = 16;
  c["sliding_window_pattern"] = 2;
  const ModelSpec s = spec_of(c);
  for (int64_t layer = 0; layer < 3; ++layer) {
    const bool full = layer == 1;
    EXPECT_EQ(ops<Rope>(s, layer).empty(), full) << layer;
    EXPECT_EQ(ops<Attention>(s, layer)[0].window, full ? 0 : 16) << layer;
  }
  EXPECT_TRUE(ops<Rope>(s, 0)[0].neighbours);
  EXPECT_EQ(ops<Norm>(s, 0).size(), 1u);
  EXPECT_EQ(s.final_norm_kind, NormKind::layer);
  EXPECT_TRUE(s.tied());
  c["use_qk_norm"] = true;
  EXPECT_TRUE(says(refusal(c, ErrorKind::unsupported), {"use_qk_norm"}));
}

TEST(Ministral3, QueriesAreScaledByTheirPositions) {
  json c = of_class("Ministral3ForCausalLM");
  c["rope_parameters"] = {{"rope_type", "yarn"},
                          {"factor", 4.0},
                          {"rope_theta", 1e6},
                          {"original_max_position_embeddings", 128},
                          {"llama_4_scaling_beta", 0.1}};
  const std::vector<PositionScale> scales = ops<PositionScale>(spec_of(c), 0);
  ASSERT_EQ(scales.size(), 1u);
  EXPECT_EQ(scales[0].slot, Slot::q);
  EXPECT_EQ(scales[0].every, 128);
  c["rope_parameters"].erase("llama_4_scaling_beta");
  EXPECT_TRUE(ops<PositionScale>(spec_of(c), 0).empty());
}

TEST(WrappedLlama, AnotherLanguageModelIsRefusedByName) {
  json text = llama();
  text.erase("architectures");
  text["model_type"] = "llama";
  json c = {{"architectures", {"LlavaForConditionalGeneration"}}, {"text_config", text}};
  EXPECT_EQ(spec_of(c).prefix(2), "language_model.model.layers.2.");
  EXPECT_EQ(spec_of(c).lm_head, "language_model.lm_head.weight");
  EXPECT_FALSE(linears_of(spec_of(c))[0].bias);
  c["text_config"]["model_type"] = "qwen2";
  EXPECT_TRUE(linears_of(spec_of(c))[0].bias);
  c["text_config"]["model_type"] = "opt";
  EXPECT_TRUE(says(refusal(c, ErrorKind::unsupported), {"model_type", "\"opt\"", "mistral"}));
}

json gemma4_e2b() {
  json c = of_class("Gemma4ForCausalLM");
  c["head_dim"] = 16;
  c["global_head_dim"] = 32;
  c["hidden_activation"] = "gelu_pytorch_tanh";
  c["num_hidden_layers"] = 6;
  c["layer_types"] = {"sliding_attention", "sliding_attention", "full_attention",
                      "sliding_attention", "sliding_attention", "full_attention"};
  c["rope_parameters"] = {{"full_attention", {{"rope_type", "proportional"}, {"partial_rotary_factor", 0.25}}},
                          {"sliding_attention", {{"rope_type", "default"}}}};
  c["num_kv_shared_layers"] = 3;
  c["use_double_wide_mlp"] = true;
  c["hidden_size_per_layer_input"] = 8;
  return c;
}

TEST(Gemma4, TheLastLayersReadTheKeysOfTheLastOneOfTheirKind) {
  const ModelSpec s = spec_of(gemma4_e2b());
  std::vector<int64_t> from;
  for (int64_t i = 0; i < s.layers; ++i) from.push_back(keys_layer(s, i));
  EXPECT_EQ(from, (std::vector<int64_t>{0, 1, 2, 1, 1, 2}));
  const auto kept = [&](int64_t layer) {
    return ops<Keep>(s, layer).empty() ? std::vector<Slot>{} : ops<Keep>(s, layer)[0].slots;
  };
  const std::vector<Slot> near = {Slot::near_k, Slot::near_v}, far = {Slot::far_k, Slot::far_v},
                          both = {Slot::near_k, Slot::near_v, Slot::far_k, Slot::far_v};
  EXPECT_EQ(kept(0), std::vector<Slot>{});
  EXPECT_EQ(kept(1), near);
  EXPECT_EQ(kept(2), both);
  EXPECT_EQ(kept(3), both);
  EXPECT_EQ(kept(4), far);
  EXPECT_EQ(kept(5), std::vector<Slot>{});
  EXPECT_EQ(slot_features(s, s.block(3), Slot::far_k), 2 * 32);
  EXPECT_EQ(slot_features(s, s.block(5), Slot::far_k), 2 * 32);
  for (const NamedLinear& l : linears_of(s))
    if (l.layer >= 3) {
      EXPECT_EQ(l.name.find("k_proj"), std::string::npos) << l.name;
      if (l.name.ends_with("up_proj")) {
        EXPECT_EQ(l.out, 2 * 96) << l.name;
      }
    }
  ASSERT_TRUE(token_input_of(s));
  EXPECT_EQ(token_input_of(s)->table, "model.embed_tokens_per_layer.weight");
}

TEST(Gemma4, SharedKeysThatNobodyMakesAreRefused) {
  json c = gemma4_e2b();
  c["num_kv_shared_layers"] = 4;  // no layer that sees everything is left
  EXPECT_TRUE(says(refusal(c, ErrorKind::checkpoint), {"num_kv_shared_layers", "layer 2"}));
  c["num_kv_shared_layers"] = 6;
  EXPECT_TRUE(says(refusal(c, ErrorKind::checkpoint), {"num_kv_shared_layers", "0 to 5"}));
  c = gemma4_e2b();
  c["vocab_size_per_layer_input"] = 49;
  EXPECT_TRUE(says(refusal(c, ErrorKind::unsupported), {"vocab_size_per_layer_input", "50"}));
}

json llama4() {
  json c = of_class("Llama4ForCausalLM");
  c["num_hidden_layers"] = 4;
  c["intermediate_size"] = 32;
  c["intermediate_size_mlp"] = 96;
  c["num_local_experts"] = 4;
  c["num_experts_per_tok"] = 1;
  c["interleave_moe_layer_step"] = 2;
  c["attention_chunk_size"] = 16;
  c["floor_scale"] = 8;
  return c;
}

TEST(Llama4, ChunksAndTemperaturesByTurns) {
  const ModelSpec s = spec_of(llama4());
  for (int64_t layer = 0; layer < 4; ++layer) {
    const bool turns = layer != 3;
    EXPECT_EQ(ops<Attention>(s, layer)[0].chunk, turns ? 16 : 0) << layer;
    EXPECT_EQ(ops<Rope>(s, layer).size(), turns ? 1u : 0u) << layer;
    EXPECT_EQ(ops<HeadNorm>(s, layer).size(), turns ? 2u : 0u) << layer;
    EXPECT_EQ(ops<PositionScale>(s, layer).size(), turns ? 0u : 1u) << layer;
    EXPECT_EQ(ops<Moe>(s, layer).size(), layer % 2 == 1 ? 1u : 0u) << layer;
  }
  EXPECT_TRUE(ops<Moe>(s, 1)[0].weigh_inputs);
  EXPECT_EQ(ops<PositionScale>(s, 3)[0].shift, 1);
  json c = llama4();
  c["no_rope_layers"] = {1, 0};
  EXPECT_TRUE(says(refusal(c, ErrorKind::checkpoint), {"no_rope_layers", "4 entries"}));
}

// [experts, inputs, outputs], gate beside up.
TEST(Llama4, ExpertsOutOfTurnedStacks) {
  const ModelSpec spec = spec_of(llama4());
  const std::string experts = "model.layers.1.feed_forward.experts.";
  const Tensor stack = random_normal(DType::f32, {4, 64, 64}, 1), down = random_normal(DType::f32, {4, 32, 64}, 2);
  const TempDir dir;
  const auto writer = container_safetensors.create(dir / "m", {});
  writer->add(experts + "gate_up_proj", stack);
  writer->add(experts + "down_proj", down);
  writer->finish();
  const WeightStore store = with_single_experts(spec, WeightStore::open(dir / "m"));
  const auto value = [&](const std::string& name, int64_t row, int64_t column) {
    const ConstTensorView v = store.get(experts + name);
    float x = 0;
    std::memcpy(&x, static_cast<const float*>(v.data) + row * v.cols() + column, sizeof x);
    return x;
  };
  EXPECT_EQ(value("2.gate_proj.weight", 3, 5), stack.as<float>()[(2 * 64 + 5) * 64 + 3]);
  EXPECT_EQ(value("2.up_proj.weight", 3, 5), stack.as<float>()[(2 * 64 + 5) * 64 + 32 + 3]);
  EXPECT_EQ(value("1.down_proj.weight", 7, 9), down.as<float>()[(1 * 32 + 9) * 64 + 7]);
}

TEST(Lfm2, WidthsAndKindsOfLayers) {
  json c = of_class("Lfm2ForCausalLM");
  EXPECT_TRUE(attention_of(spec_of(c).block(0)));  // as transformers reads a config that does not say
  c["layer_types"] = {"conv", "full_attention", "conv"};
  c["block_ff_dim"] = 300;
  c["block_multiple_of"] = 32;
  const ModelSpec s = spec_of(c);
  EXPECT_FALSE(attention_of(s.block(0)));
  EXPECT_TRUE(attention_of(s.block(1)));
  EXPECT_FALSE(ops<ShortConv>(s, 0)[0].silu);
  EXPECT_EQ(slot_features(s, s.block(0), Slot::gate), 224);  // 2 / 3 of 300, up to a multiple of 32
  EXPECT_EQ(s.final_norm, "model.embedding_norm.weight");
  EXPECT_TRUE(s.tied());
}

json nemotron() {
  json c = of_class("NemotronHForCausalLM");
  c["hybrid_override_pattern"] = "M*E";
  c["mamba_num_heads"] = 4;
  c["mamba_head_dim"] = 8;
  c["n_groups"] = 2;
  c["ssm_state_size"] = 16;
  c["n_routed_experts"] = 4;
  c["num_experts_per_tok"] = 2;
  c["moe_intermediate_size"] = 32;
  return c;
}

TEST(NemotronH, AMixerALayerByItsPattern) {
  const ModelSpec s = spec_of(nemotron());
  EXPECT_EQ(ops<StateScan>(s, 0).size(), 1u);
  EXPECT_TRUE(attention_of(s.block(1)));
  EXPECT_TRUE(ops<Rope>(s, 1).empty());
  const Moe moe = ops<Moe>(s, 2)[0];
  EXPECT_FALSE(moe.gated());
  EXPECT_EQ(moe.linears_of_expert(3).size(), 2u);
  EXPECT_EQ(s.prefix(1), "backbone.layers.1.");
  EXPECT_EQ(slot_features(s, s.block(0), Slot::fused), 2 * 32 + 2 * 2 * 16 + 4);
  for (const NamedLinear& l : linears_of(s)) EXPECT_FALSE(l.name.ends_with(".")) << l.name;
  json c = nemotron();
  c["hybrid_override_pattern"] = "M*X";
  EXPECT_TRUE(says(refusal(c, ErrorKind::checkpoint), {"hybrid_override_pattern", "M*X"}));
  c = nemotron();
  c["n_groups"] = 3;
  EXPECT_TRUE(says(refusal(c, ErrorKind::checkpoint), {"n_groups", "divisor"}));
  c = nemotron();
  c["moe_latent_size"] = 8;
  EXPECT_TRUE(says(refusal(c, ErrorKind::unsupported), {"moe_latent_size"}));
}

// What transformers 5 writes: words in a list, which may say alone how many layers there are.
TEST(NemotronH, AMixerALayerByItsList) {
  const ModelSpec by_letters = spec_of(nemotron());
  for (const std::vector<std::string>& words : {std::vector<std::string>{"linear_attention", "full_attention", "moe"},
                                                std::vector<std::string>{"mamba", "attention", "moe"}}) {
    json c = nemotron();
    c.erase("hybrid_override_pattern");
    c.erase("num_hidden_layers");
    c["layers_block_type"] = words;
    const ModelSpec s = spec_of(c);
    ASSERT_EQ(s.layers, 3);
    for (int64_t layer = 0; layer < 3; ++layer)
      EXPECT_EQ(s.block(layer).size(), by_letters.block(layer).size()) << layer;
    c["num_hidden_layers"] = 4;
    EXPECT_TRUE(says(refusal(c, ErrorKind::checkpoint), {"layers_block_type", "expected 4 words", "moe"}));
    c["num_hidden_layers"] = 3;
    c["layers_block_type"][1] = "sliding";
    EXPECT_TRUE(says(refusal(c, ErrorKind::checkpoint), {"layers_block_type", "found", "sliding"}));
  }
}

// The scan has no limits of its own: what has none is read, what has some is refused by name.
TEST(StateSpaces, LimitsOfTheSteps) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  json granite = of_class("GraniteMoeHybridForCausalLM");
  granite.update({{"layer_types", {"mamba", "attention", "mamba"}},
                  {"mamba_n_heads", 8},
                  {"mamba_d_head", 16},
                  {"mamba_d_state", 32},
                  {"shared_intermediate_size", 40}});
  for (const json& family : {nemotron(), granite})
    for (const char* key : {"time_step_limit", "mamba_dt_limit"}) {
      json c = family;
      c[key] = {0.0, kInfinity};
      EXPECT_EQ(spec_of(c).layers, 3);
      c[key] = {0.0, {{"__float__", "Infinity"}}};  // transformers 5
      EXPECT_EQ(spec_of(c).layers, 3);
      c[key] = {0.001, kInfinity};
      EXPECT_TRUE(says(refusal(c, ErrorKind::unsupported), {key, "found [0.001, inf]", "[0, Infinity]"}));
      c[key] = {0.0, 0.1};
      EXPECT_TRUE(says(refusal(c, ErrorKind::unsupported), {key, "found [0, 0.1]"}));
      for (const json& wrong : {json::array({0.0, std::numeric_limits<double>::quiet_NaN()}), json::array({1}),
                                json::array({kInfinity, 0}), json("Infinity")}) {
        c[key] = wrong;
        EXPECT_TRUE(says(refusal(c, ErrorKind::checkpoint), {key, "two numbers"})) << python_json(wrong);
      }
    }
}

// As transformers 5 saves it, with a config of the language model and its tensors below another name.
TEST(Qwen25Vl, WithAConfigOfItsLanguageModel) {
  json c = of_class("Qwen2_5_VLForConditionalGeneration");
  EXPECT_EQ(spec_of(c).prefix(1), "model.layers.1.");
  json text = c;
  text.erase("architectures");
  const json saved = {{"architectures", c["architectures"]}, {"model_type", "qwen2_5_vl"}, {"text_config", text}};
  const ModelSpec s = spec_of(saved);
  EXPECT_EQ(s.hidden, 64);
  EXPECT_EQ(s.prefix(1), "model.language_model.layers.1.");
  EXPECT_EQ(s.embed, "model.language_model.embed_tokens.weight");
  EXPECT_EQ(s.lm_head, "lm_head.weight");
}

TEST(Numbers, MustBeFinite) {
  for (const double v : {std::numeric_limits<double>::infinity(), std::numeric_limits<double>::quiet_NaN()}) {
    json c = llama();
    c["rms_norm_eps"] = v;
    EXPECT_TRUE(says(refusal(c, ErrorKind::checkpoint),
                     {"rms_norm_eps", "a finite number, found ", python_json(json(v)).c_str()}));
    c = llama();
    c["hidden_size"] = v;
    EXPECT_TRUE(says(refusal(c, ErrorKind::checkpoint), {"hidden_size", "an integer"}));
    c = llama();
    c["rope_theta"] = v;
    EXPECT_TRUE(says(refusal(c, ErrorKind::checkpoint), {"rope_theta", "a finite number"}));
  }
}

}  // namespace
}  // namespace fewbit::test
