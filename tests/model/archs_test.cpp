// Configs to specs: both spellings, refusals by key, rotary scalings, windows, and the complaints about a
// checkpoint.
#include "src/model/archs.h"

#include <cmath>
#include <nlohmann/json.hpp>

#include "src/model/checkpoint.h"
#include "tests/support/support.h"
#include "tests/support/tolerance.h"

namespace fewbit::test {
namespace {

using nlohmann::json;

json llama() {
  return {{"architectures", {"LlamaForCausalLM"}},
          {"hidden_size", 64},
          {"intermediate_size", 96},
          {"num_hidden_layers", 3},
          {"num_attention_heads", 4},
          {"num_key_value_heads", 2},
          {"vocab_size", 50},
          {"rms_norm_eps", 1e-5},
          {"hidden_act", "silu"},
          {"max_position_embeddings", 512},
          {"eos_token_id", {1, 2}},
          {"bos_token_id", 0}};
}

ModelSpec spec_of(const json& config) { return build_spec(ConfigView::parse(config.dump(), "config.json")); }

std::string refusal(const json& config, ErrorKind kind) {
  try {
    spec_of(config);
  } catch (const Error& e) {
    EXPECT_EQ(e.kind(), kind) << e.what();
    return e.what();
  }
  return "";
}

bool says(const std::string& message, std::initializer_list<const char*> parts) {
  for (const char* p : parts)
    if (message.find(p) == std::string::npos) return false;
  return true;
}

template <class Op>
std::vector<Op> ops(const ModelSpec& spec, int64_t layer) {
  std::vector<Op> out;
  for (const BlockOp& op : spec.block(layer))
    if (const Op* found = std::get_if<Op>(&op)) out.push_back(*found);
  return out;
}

TEST(Archs, LlamaSizesAndDefaults) {
  const ModelSpec s = spec_of(llama());
  EXPECT_EQ(s.layers, 3);
  EXPECT_EQ(ops<Attention>(s, 0)[0].head_dim, 16);
  EXPECT_EQ(attention_of(s.block(1))->kv_heads * attention_of(s.block(1))->head_dim, 32);
  EXPECT_EQ(attention_module(s.block(1)), "self_attn");
  EXPECT_EQ(s.eos, (std::vector<int64_t>{1, 2}));
  EXPECT_FALSE(s.tied());
  EXPECT_EQ(linears_of(s).size(), 21u);
  EXPECT_EQ(slot_features(s, s.block(0), Slot::act), 96);
  EXPECT_EQ(slot_features(s, s.block(0), Slot::attn), 64);
  // 2 * vocabulary * hidden, per layer q + o (64 * 64), k + v (32 * 64), three of 96 * 64 and two norms, the
  // last norm.
  EXPECT_EQ(parameter_count(s), 2 * 50 * 64 + 3 * (2 * 64 * 64 + 2 * 32 * 64 + 3 * 96 * 64 + 2 * 64) + 64);
  json tied = llama();
  tied["tie_word_embeddings"] = true;
  tied["head_dim"] = 32;
  EXPECT_TRUE(spec_of(tied).tied());
  EXPECT_EQ(ops<Attention>(spec_of(tied), 0)[0].head_dim, 32);
}

TEST(Archs, BiasesOfEachFamily) {
  const auto biases = [](const json& c) {
    std::string out;
    for (const NamedLinear& l : linears_of(spec_of(c)))
      if (l.layer == 0) out += l.bias ? '1' : '0';
    return out;  // q k v o gate up down
  };
  json c = llama();
  EXPECT_EQ(biases(c), "0000000");
  c["attention_bias"] = true;
  EXPECT_EQ(biases(c), "1111000");
  c["mlp_bias"] = true;
  EXPECT_EQ(biases(c), "1111111");
  json qwen2 = llama();
  qwen2["architectures"] = {"Qwen2ForCausalLM"};
  EXPECT_EQ(biases(qwen2), "1110000");
}

TEST(Archs, Qwen3NormsEveryHeadBeforeTheRotation) {
  json c = llama();
  c["architectures"] = {"Qwen3ForCausalLM"};
  const ModelSpec s = spec_of(c);
  std::string order;
  for (const BlockOp& op : s.block(0)) {
    if (const HeadNorm* n = std::get_if<HeadNorm>(&op)) order += n->name + " ";
    if (std::holds_alternative<Rope>(op)) order += "rope";
  }
  EXPECT_EQ(order, "self_attn.q_norm self_attn.k_norm rope");
}

TEST(Archs, Qwen3MoeHasExpertsWhereTheConfigWantsThem) {
  json c = llama();
  c["architectures"] = {"Qwen3MoeForCausalLM"};
  c["num_experts"] = 4;
  c["num_experts_per_tok"] = 2;
  c["moe_intermediate_size"] = 32;
  c["norm_topk_prob"] = true;
  const auto sparse = [](const json& config) {
    const ModelSpec s = spec_of(config);
    std::string out;
    for (int64_t layer = 0; layer < s.layers; ++layer) out += ops<Moe>(s, layer).empty() ? '0' : '1';
    return out;
  };
  EXPECT_EQ(sparse(c), "111");
  const ModelSpec s = spec_of(c);
  EXPECT_EQ(s.kinds.size(), 1u);
  const Moe moe = ops<Moe>(s, 0)[0];
  EXPECT_EQ(moe.experts, 4);
  EXPECT_EQ(moe.top_k, 2);
  EXPECT_TRUE(moe.renormalise);
  const std::vector<NamedLinear> linears = linears_of(s);
  ASSERT_EQ(linears.size(), 3u * (4 + 3 * 4));
  EXPECT_EQ(linears[4].name, "model.layers.0.mlp.experts.0.gate_proj");
  EXPECT_EQ(linears[15].name, "model.layers.0.mlp.experts.3.down_proj");
  EXPECT_EQ(linears[15].in, 32);
  EXPECT_EQ(linears[15].out, 64);
  // As in LlamaSizesAndDefaults, with twelve of 32 * 64, the router and the norms of q and k.
  EXPECT_EQ(parameter_count(s),
            2 * 50 * 64 + 3 * (2 * 64 * 64 + 2 * 32 * 64 + 12 * 32 * 64 + 4 * 64 + 2 * 64 + 2 * 16) + 64);
  EXPECT_NE(describe(s).find("4 experts, 2 of them"), std::string::npos);
  c["decoder_sparse_step"] = 2;
  EXPECT_EQ(sparse(c), "010");
  c["decoder_sparse_step"] = 1;
  c["mlp_only_layers"] = {0, 2};
  EXPECT_EQ(sparse(c), "010");
  EXPECT_EQ(spec_of(c).kinds.size(), 2u);
  c["num_experts_per_tok"] = 5;
  EXPECT_TRUE(says(refusal(c, ErrorKind::checkpoint), {"num_experts_per_tok", "5 of 4"}));
  c["num_experts_per_tok"] = 2;
  c["use_sliding_window"] = true;
  EXPECT_TRUE(says(refusal(c, ErrorKind::unsupported), {"use_sliding_window"}));
}

TEST(Archs, MixtralNamesItsExpertsByLettersAndTakesEitherCountKey) {
  json c = llama();
  c["architectures"] = {"MixtralForCausalLM"};
  c["num_experts_per_tok"] = 2;
  EXPECT_TRUE(says(refusal(c, ErrorKind::checkpoint), {"num_local_experts"}));
  for (const char* key : {"num_local_experts", "num_experts"}) {
    json config = c;
    config[key] = 8;
    const ModelSpec s = spec_of(config);
    const Moe moe = ops<Moe>(s, 0)[0];
    EXPECT_EQ(moe.experts, 8);
    EXPECT_TRUE(moe.renormalise);
    EXPECT_EQ(moe.of_expert(moe.gate, 3).name, "block_sparse_moe.experts.3.w1");
    EXPECT_EQ(moe.of_expert(moe.up, 3).name, "block_sparse_moe.experts.3.w3");
    EXPECT_EQ(moe.of_expert(moe.down, 7).name, "block_sparse_moe.experts.7.w2");
    EXPECT_EQ(moe.down.in_features, 96);
  }
}

TEST(Archs, WindowsBySlidingWindowByQwensRuleAndByLayerTypes) {
  const auto windows = [](const json& c) {
    const ModelSpec s = spec_of(c);
    std::vector<int64_t> out;
    for (int64_t layer = 0; layer < s.layers; ++layer) out.push_back(ops<Attention>(s, layer)[0].window);
    return out;
  };
  json mistral = llama();
  mistral["architectures"] = {"MistralForCausalLM"};
  mistral["sliding_window"] = 16;
  EXPECT_EQ(windows(mistral), (std::vector<int64_t>{16, 16, 16}));
  mistral["sliding_window"] = nullptr;
  EXPECT_EQ(windows(mistral), (std::vector<int64_t>{0, 0, 0}));
  json qwen = llama();
  qwen["architectures"] = {"Qwen2ForCausalLM"};
  qwen["sliding_window"] = 16;
  qwen["max_window_layers"] = 2;
  EXPECT_EQ(windows(qwen), (std::vector<int64_t>{0, 0, 0}));
  qwen["use_sliding_window"] = true;
  EXPECT_EQ(windows(qwen), (std::vector<int64_t>{0, 0, 16}));
  qwen["layer_types"] = {"sliding_attention", "full_attention", "sliding_attention"};
  EXPECT_EQ(windows(qwen), (std::vector<int64_t>{16, 0, 16}));
  EXPECT_EQ(spec_of(qwen).kinds.size(), 2u);
  qwen["layer_types"] = {"full_attention", "full_attention", "linear_attention"};
  EXPECT_TRUE(says(refusal(qwen, ErrorKind::unsupported), {"layer_types[2]", "linear_attention"}));
}

std::vector<int64_t> windows_of(const ModelSpec& s) {
  std::vector<int64_t> out;
  for (int64_t layer = 0; layer < s.layers; ++layer) out.push_back(ops<Attention>(s, layer)[0].window);
  return out;
}

json gemma(const char* class_name) {
  json c = llama();
  c["architectures"] = {class_name};
  c.erase("hidden_act");
  c["hidden_activation"] = "gelu_pytorch_tanh";
  c["head_dim"] = 16;
  c["query_pre_attn_scalar"] = 64;
  c["sliding_window"] = 8;
  return c;
}

TEST(Archs, Gemma2CapsNormsBothSidesAndAlternates) {
  json c = gemma("Gemma2ForCausalLM");
  const ModelSpec s = spec_of(c);
  EXPECT_TRUE(s.tied()) << "Gemma's default";
  EXPECT_EQ(s.embed_scale, 8.f);
  EXPECT_EQ(s.final_norm_kind, NormKind::rms_plus_one);
  EXPECT_EQ(s.logit_softcap, 30.f) << "the default of an absent key";
  EXPECT_EQ(ops<Attention>(s, 0)[0].softcap, 50.f);
  EXPECT_EQ(ops<Attention>(s, 0)[0].scale, 0.125f);
  EXPECT_EQ(ops<GatedAct>(s, 0)[0].act, Activation::gelu_tanh);
  std::string norms;
  for (const Norm& n : ops<Norm>(s, 0)) {
    EXPECT_EQ(n.kind, NormKind::rms_plus_one);
    norms += n.name + (n.in == n.out ? "(in place) " : " ");
  }
  EXPECT_EQ(norms,
            "input_layernorm post_attention_layernorm(in place) pre_feedforward_layernorm "
            "post_feedforward_layernorm(in place) ");
  EXPECT_EQ(windows_of(s), (std::vector<int64_t>{8, 0, 8}));
  c["final_logit_softcapping"] = c["attn_logit_softcapping"] = nullptr;
  EXPECT_EQ(spec_of(c).logit_softcap, 0.f) << "null is no cap";
  EXPECT_EQ(ops<Attention>(spec_of(c), 0)[0].softcap, 0.f);
  c["final_logit_softcapping"] = -1;
  EXPECT_TRUE(says(refusal(c, ErrorKind::checkpoint), {"final_logit_softcapping", "-1"}));
  c = gemma("Gemma2ForCausalLM");
  c["layer_types"] = {"full_attention", "full_attention", "sliding_attention"};
  EXPECT_EQ(windows_of(spec_of(c)), (std::vector<int64_t>{0, 0, 8}));
  c["hidden_activation"] = "gelu";
  EXPECT_TRUE(says(refusal(c, ErrorKind::unsupported), {"hidden_activation", "gelu", "gelu_pytorch_tanh"}));
  c = gemma("Gemma2ForCausalLM");
  c["use_bidirectional_attention"] = true;
  EXPECT_TRUE(says(refusal(c, ErrorKind::unsupported), {"use_bidirectional_attention"}));
  c = gemma("Gemma2ForCausalLM");
  c["query_pre_attn_scalar"] = 0;
  EXPECT_TRUE(says(refusal(c, ErrorKind::checkpoint), {"query_pre_attn_scalar"}));
}

TEST(Archs, Gemma3TurnsItsTwoKindsOfLayerByDifferentRotations) {
  json newer = gemma("Gemma3ForCausalLM");
  newer["sliding_window_pattern"] = 3;
  json older = newer, bare = newer;
  newer["rope_parameters"] = {{"full_attention", {{"rope_type", "linear"}, {"factor", 8.0}, {"rope_theta", 1e6}}},
                              {"sliding_attention", {{"rope_type", "default"}, {"rope_theta", 1e4}}}};
  older["rope_theta"] = 1e6;
  older["rope_local_base_freq"] = 1e4;
  older["rope_scaling"] = {{"rope_type", "linear"}, {"factor", 8.0}};
  for (const json& c : {newer, older}) {
    const ModelSpec s = spec_of(c);
    EXPECT_EQ(windows_of(s), (std::vector<int64_t>{8, 8, 0}));
    EXPECT_EQ(s.logit_softcap, 0.f);
    EXPECT_EQ(ops<HeadNorm>(s, 0)[1].kind, NormKind::rms_plus_one);
    const std::vector<float> local = ops<Rope>(s, 0)[0].params.inv_freq, global = ops<Rope>(s, 2)[0].params.inv_freq;
    EXPECT_FLOAT_EQ(local[1], std::pow(1e4f, -2.f / 16));
    EXPECT_FLOAT_EQ(global[1], std::pow(1e6f, -2.f / 16) / 8);
  }
  EXPECT_FLOAT_EQ(ops<Rope>(spec_of(bare), 0)[0].params.inv_freq[1], std::pow(1e4f, -2.f / 16));
  EXPECT_FLOAT_EQ(ops<Rope>(spec_of(bare), 2)[0].params.inv_freq[1], std::pow(1e6f, -2.f / 16));
}

TEST(Archs, Phi3KeepsItsFusedLinears) {
  json c = llama();
  c["architectures"] = {"Phi3ForCausalLM"};
  c["partial_rotary_factor"] = 0.5;
  c["sliding_window"] = 8;
  const ModelSpec s = spec_of(c);
  const std::vector<NamedLinear> linears = linears_of(s);
  ASSERT_EQ(linears.size(), 12u);
  EXPECT_EQ(linears[0].name, "model.layers.0.self_attn.qkv_proj");
  EXPECT_EQ(linears[0].out, 64 + 2 * 32);
  EXPECT_EQ(linears[2].name, "model.layers.0.mlp.gate_up_proj");
  EXPECT_EQ(linears[2].out, 2 * 96);
  EXPECT_EQ(slot_features(s, s.block(0), Slot::k), 32);
  EXPECT_EQ(slot_features(s, s.block(0), Slot::act), 96);
  EXPECT_EQ(attention_module(s.block(0)), "self_attn");
  EXPECT_EQ(ops<Rope>(s, 0)[0].params.inv_freq.size(), 4u);
  EXPECT_EQ(windows_of(s), (std::vector<int64_t>{8, 8, 8}));
  c["rope_scaling"] = {{"type", "mrope"}};
  EXPECT_TRUE(says(refusal(c, ErrorKind::unsupported), {"rope_scaling.rope_type", "mrope", "yarn, longrope"}));
}

TEST(Archs, BothSpellingsGiveTheSameRotation) {
  const json llama3 = {
      {"factor", 8.0}, {"low_freq_factor", 1.0}, {"high_freq_factor", 4.0}, {"original_max_position_embeddings", 32}};
  const json yarn = {{"factor", 4.0}, {"original_max_position_embeddings", 128}};
  for (const auto& [type, scaling] : std::initializer_list<std::pair<std::string, json>>{
           {"default", json::object()}, {"linear", {{"factor", 2.0}}}, {"llama3", llama3}, {"yarn", yarn}}) {
    json older = llama(), oldest = llama(), newer = llama();
    older["rope_theta"] = oldest["rope_theta"] = 5e5;
    older["rope_scaling"] = oldest["rope_scaling"] = newer["rope_parameters"] = scaling;
    older["rope_scaling"]["rope_type"] = type;
    oldest["rope_scaling"]["type"] = type;
    newer["rope_parameters"]["rope_type"] = type;
    newer["rope_parameters"]["rope_theta"] = 5e5;
    const Rope a = ops<Rope>(spec_of(older), 0)[0], b = ops<Rope>(spec_of(newer), 0)[0],
               c = ops<Rope>(spec_of(oldest), 0)[0];
    EXPECT_EQ(a.params.inv_freq, b.params.inv_freq) << type;
    EXPECT_EQ(a.params.inv_freq, c.params.inv_freq) << type;
    EXPECT_EQ(a.params.attention_scale, b.params.attention_scale) << type;
    EXPECT_EQ(a.params.inv_freq.size(), 8u);
    EXPECT_EQ(a.params.inv_freq[0], type == "linear" ? 0.5f : 1.f) << type;
    EXPECT_EQ(a.params.attention_scale == 1.f, type != "yarn");
  }
}

// Six of eight features turn: theta^(-2i/6) = 1, 0.01, 0.0001 of theta = 1e6.
json long_rope() {
  json c = llama();
  c["architectures"] = {"Phi3ForCausalLM"};
  c["head_dim"] = 8;
  c["rope_theta"] = 1e6;
  c["partial_rotary_factor"] = 0.75;
  c["max_position_embeddings"] = 512;
  c["original_max_position_embeddings"] = 32;
  c["rope_scaling"] = {{"type", "longrope"}, {"short_factor", {1.0, 1.25, 2}}, {"long_factor", {1.5, 4.0, 32.0}}};
  return c;
}

TEST(Archs, LongRopeByHand) {
  const auto params = [](const json& config) { return ops<Rope>(spec_of(config), 0)[0].params; };
  json c = long_rope();
  const RopeParams p = params(c);
  ASSERT_EQ(p.inv_freq.size(), 3u);
  ASSERT_EQ(p.long_inv_freq.size(), 3u);
  const float within[] = {1.f, 0.01f / 1.25f, 0.0001f / 2}, beyond[] = {1 / 1.5f, 0.01f / 4, 0.0001f / 32};
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_FLOAT_EQ(p.inv_freq[i], within[i]);
    EXPECT_FLOAT_EQ(p.long_inv_freq[i], beyond[i]);
  }
  EXPECT_EQ(p.original_positions, 32);
  EXPECT_FLOAT_EQ(p.attention_scale, std::sqrt(1 + 4.f / 5));  // ln(512 / 32) / ln 32 = 4 / 5
  EXPECT_EQ(&p.table(32), &p.inv_freq);
  EXPECT_EQ(&p.table(33), &p.long_inv_freq);
  EXPECT_FALSE(turns_long(spec_of(c), 32));
  EXPECT_TRUE(turns_long(spec_of(c), 33));
  EXPECT_NE(describe(spec_of(c)).find("up to 32 positions and one for longer ones, cos and sin times 1.34164"),
            std::string::npos);
  // Two earlier names of the type, and the newer spelling, which has all in one object.
  json su = c, yarn = c, newer = llama();
  su["rope_scaling"]["type"] = "su";
  yarn["rope_scaling"]["type"] = "yarn";
  newer["architectures"] = {"Phi3ForCausalLM"};
  newer["head_dim"] = 8;
  newer["rope_parameters"] = c["rope_scaling"];
  newer["rope_parameters"].erase("type");
  newer["rope_parameters"].update({{"rope_type", "longrope"},
                                   {"rope_theta", 1e6},
                                   {"partial_rotary_factor", 0.75},
                                   {"original_max_position_embeddings", 32}});
  for (const json& other : {su, yarn, newer}) {
    EXPECT_EQ(params(other).inv_freq, p.inv_freq);
    EXPECT_EQ(params(other).long_inv_freq, p.long_inv_freq);
    EXPECT_EQ(params(other).attention_scale, p.attention_scale);
    EXPECT_EQ(params(other).original_positions, 32);
  }
  newer["original_max_position_embeddings"] = 64;  // the root's goes first
  EXPECT_EQ(params(newer).original_positions, 64);
  // A factor goes before the ratio of the contexts, attention_factor before both.
  c["rope_scaling"]["factor"] = 2.0;
  EXPECT_FLOAT_EQ(params(c).attention_scale, std::sqrt(1 + 1.f / 5));
  c["rope_scaling"]["factor"] = 0.5;
  EXPECT_EQ(params(c).attention_scale, 1.f);
  c["rope_scaling"]["attention_factor"] = 1.5;
  EXPECT_EQ(params(c).attention_scale, 1.5f);
  c = long_rope();
  c["max_position_embeddings"] = 32;
  EXPECT_EQ(params(c).attention_scale, 1.f);
  EXPECT_EQ(params(llama()).original_positions, 0);  // one table, however long the run
  EXPECT_FALSE(turns_long(spec_of(llama()), 1 << 20));
  EXPECT_EQ(long_rope_line(spec_of(llama()), 1 << 20), "");
}

TEST(Archs, LongRopeThatCannotBeIsRefused) {
  const auto refused = [](const char* key, const json& value) {
    json c = long_rope();
    c["rope_scaling"][key] = value;
    return refusal(c, ErrorKind::checkpoint);
  };
  EXPECT_EQ(refused("short_factor", {1.0, 2.0}),
            "config.json: rope_scaling.short_factor: expected 3 positive numbers, found 2 entries");
  EXPECT_EQ(refused("long_factor", nullptr),
            "config.json: rope_scaling.long_factor: expected 3 positive numbers, found nothing");
  EXPECT_EQ(refused("long_factor", 4.0),
            "config.json: rope_scaling.long_factor: expected 3 positive numbers, found 4.0");
  EXPECT_EQ(refused("long_factor", {1.0, 0.0, 2.0}),
            "config.json: rope_scaling.long_factor[1]: expected a number above 0, found 0.0");
  EXPECT_EQ(refused("short_factor", {1.0, 1.0, "2"}),
            "config.json: rope_scaling.short_factor[2]: expected a number above 0, found \"2\"");
  EXPECT_TRUE(says(refused("attention_factor", -1.0), {"rope_scaling.attention_factor: expected a number above 0"}));
  json c = long_rope();
  c.erase("original_max_position_embeddings");
  EXPECT_EQ(refusal(c, ErrorKind::checkpoint),
            "config.json: rope_scaling.original_max_position_embeddings: expected an integer, found nothing");
  c["original_max_position_embeddings"] = 1;
  EXPECT_EQ(refusal(c, ErrorKind::checkpoint),
            "config.json: original_max_position_embeddings: expected an integer above 1, found 1");
  c = long_rope();
  c["rope_scaling"]["long_mscale"] = 1.2;
  EXPECT_TRUE(says(refusal(c, ErrorKind::unsupported), {"rope_scaling.long_mscale is not supported"}));
}

TEST(Archs, ScaledRotationsByHand) {
  json c = llama();
  c["head_dim"] = 8;
  c["rope_theta"] = 10000.0;  // inv_freq 1, 0.1, 0.01, 0.001: wavelengths 6.28, 62.8, 628, 6283
  const auto freqs = [&] { return ops<Rope>(spec_of(c), 0)[0].params; };
  // High frequency below 32 / 4 = 8, low above 32 / 1 = 32.
  c["rope_scaling"] = {{"rope_type", "llama3"},
                       {"factor", 8.0},
                       {"low_freq_factor", 1.0},
                       {"high_freq_factor", 4.0},
                       {"original_max_position_embeddings", 32}};
  EXPECT_FLOAT_EQ(freqs().inv_freq[0], 1.f);
  EXPECT_FLOAT_EQ(freqs().inv_freq[1], 0.1f / 8);
  EXPECT_FLOAT_EQ(freqs().inv_freq[3], 0.001f / 8);
  // Between 128 / 4 = 32 and 128: smooth = (128 / 62.83 - 1) / 3.
  c["rope_scaling"]["original_max_position_embeddings"] = 128;
  const double smooth = (128 / (20 * 3.14159265358979) - 1) / 3;
  EXPECT_NEAR(freqs().inv_freq[1], (1 - smooth) * 0.1 / 8 + smooth * 0.1, 1e-8);
  // YaRN: correction dims of 32 and 1 turns in 512 positions: floor(8 ln(512 / 64 pi) / (2 ln 1e4)) = 0 and
  // ceil(8 ln(512 / 2 pi) / (2 ln 1e4)) = 2; the ramp over features 0, 1, 2, 3 is 0, 1/2, 1, 1.
  c["rope_scaling"] = {{"type", "yarn"}, {"factor", 4.0}, {"original_max_position_embeddings", 512}};
  EXPECT_FLOAT_EQ(freqs().inv_freq[0], 1.f);
  EXPECT_FLOAT_EQ(freqs().inv_freq[1], 0.1f * (0.5f + 0.5f / 4));
  EXPECT_FLOAT_EQ(freqs().inv_freq[2], 0.01f / 4);
  EXPECT_FLOAT_EQ(freqs().attention_scale, 0.1f * std::log(4.f) + 1);
  c["rope_scaling"]["attention_factor"] = 1.5;
  EXPECT_FLOAT_EQ(freqs().attention_scale, 1.5f);
}

TEST(Archs, UnknownValuesAreRefusedByKey) {
  json c = llama();
  c["hidden_act"] = "gelu";
  EXPECT_TRUE(says(refusal(c, ErrorKind::unsupported), {"config.json", "hidden_act", "gelu", "silu"}));
  c = llama();
  c["rope_scaling"] = {{"type", "dynamic"}, {"factor", 2.0}};
  EXPECT_TRUE(says(refusal(c, ErrorKind::unsupported), {"rope_scaling.rope_type", "dynamic", "llama3"}));
  c = llama();
  c["architectures"] = {"MambaForCausalLM"};
  EXPECT_TRUE(says(refusal(c, ErrorKind::unsupported), {"MambaForCausalLM", "LlamaForCausalLM", "Qwen3ForCausalLM"}));
  c = llama();
  c["num_key_value_heads"] = 3;
  EXPECT_TRUE(says(refusal(c, ErrorKind::checkpoint), {"num_key_value_heads", "4", "3"}));
  c = llama();
  c.erase("hidden_size");
  EXPECT_TRUE(says(refusal(c, ErrorKind::checkpoint), {"hidden_size", "expected an integer", "nothing"}));
  c = llama();
  c["hidden_size"] = "64";
  EXPECT_TRUE(says(refusal(c, ErrorKind::checkpoint), {"hidden_size", "\"64\""}));
  c = llama();
  c["num_hidden_layers"] = -1;
  EXPECT_TRUE(says(refusal(c, ErrorKind::checkpoint), {"num_hidden_layers", "-1"}));
  c = llama();
  c["rope_parameters"] = 3;
  EXPECT_TRUE(says(refusal(c, ErrorKind::checkpoint), {"rope_parameters", "an object", "3"}));
  EXPECT_THROW(ConfigView::parse("{\"a\": }", "x"), Error);
  EXPECT_THROW(ConfigView::parse("[]", "x"), Error);
}

TEST(Archs, EveryComplaintAboutACheckpointAtOnce) {
  const TempDir dir;
  json config = llama();
  config["num_hidden_layers"] = 1;
  const ModelSpec spec = spec_of(config);
  auto writer = container_safetensors.create(dir.path(), {});
  for (const NamedDense& t : dense_tensors_of(spec))
    if (t.name != spec.final_norm)
      writer->add(t.name, Tensor::host_zeros(t.name == spec.embed ? DType::i8 : DType::f16, t.shape));
  for (const NamedLinear& l : linears_of(spec)) {
    if (l.name == "model.layers.0.mlp.up_proj" || l.name == "model.layers.0.mlp.down_proj") continue;
    const int64_t extra = l.name == "model.layers.0.self_attn.o_proj" ? 1 : 0;
    writer->add(l.name + ".weight", Tensor::host_zeros(DType::bf16, {l.out + extra, l.in}));
  }
  writer->finish();
  const WeightStore store = WeightStore::open(dir.path());
  const std::vector<std::string> found = check_against(spec, store, {"model.layers.0.mlp.up_proj"});
  std::string all;
  for (const std::string& line : found) all += line + "\n";
  EXPECT_EQ(found.size(), 4u) << all;
  EXPECT_TRUE(says(all, {"model.norm.weight: missing", "embed_tokens.weight: expected f32, f16 or bf16, found i8",
                         "o_proj.weight: expected shape [64, 64], found [65, 64]", "down_proj.weight: missing"}))
      << all;
}

TEST(Archs, EveryArchitectureBuildsFromATinyConfig) {
  for (const Architecture& a : architectures()) {
    json c = llama();
    c["architectures"] = {std::string(a.class_name)};
    c["num_local_experts"] = 4;
    c["num_experts_per_tok"] = 2;
    c["moe_intermediate_size"] = 32;
    const ModelSpec s = spec_of(c);
    EXPECT_EQ(s.arch, a.class_name);
    EXPECT_NE(describe(s).find(std::string(a.class_name)), std::string::npos);
    for (const NamedLinear& l : linears_of(s)) EXPECT_GT(l.out * l.in, 0) << l.name;
  }
}

}  // namespace
}  // namespace fewbit::test
