// Configs to specs: families, windows, refusals by key, and the complaints about a checkpoint. Rotations:
// rotations_test.cpp.
#include "src/model/archs.h"

#include "src/model/checkpoint.h"
#include "tests/model/archs_fixture.h"
#include "tests/support/support.h"
#include "tests/support/tolerance.h"

namespace fewbit::test {
namespace {

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
  c["rope_scaling"] = {{"type", "spiral"}};
  EXPECT_TRUE(says(refusal(c, ErrorKind::unsupported), {"rope_scaling.rope_type", "spiral", "yarn, longrope"}));
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
  for (const Family* f : families())
    for (const FamilyClass& of : f->classes) {
      if (of.name.empty()) continue;
      json c = llama();
      c["architectures"] = {std::string(of.name)};
      c["num_local_experts"] = 4;
      c["num_experts_per_tok"] = 2;
      c["moe_intermediate_size"] = 32;
      c["shared_expert_intermediate_size"] = 48;
      for (const char* key :
           {"linear_num_key_heads", "linear_num_value_heads", "linear_key_head_dim", "linear_value_head_dim",
            "linear_conv_kernel_dim", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim", "kv_lora_rank",
            "q_lora_rank", "index_n_heads", "index_head_dim", "index_topk"})
        c[key] = 4;
      c["n_group"] = c["topk_group"] = 1;
      c["linear_attn_config"] = {{"kda_layers", {1, 2}},
                                 {"full_attn_layers", {3}},
                                 {"num_heads", 2},
                                 {"head_dim", 8},
                                 {"short_conv_kernel_size", 4}};
      c["hybrid_override_pattern"] = "M*E";
      for (const char* key : {"mamba_num_heads", "mamba_head_dim", "n_groups", "ssm_state_size", "n_routed_experts",
                              "mamba_n_heads", "mamba_d_head", "mamba_d_state"})
        c[key] = 4;
      if (of.name.starts_with("Granite")) c["shared_intermediate_size"] = 40;
      if (of.name.starts_with("DeepseekV4")) {
        c["compress_ratios"] = {0, 4, 8};
        for (const char* key : {"hc_mult", "o_groups", "o_lora_rank", "sliding_window"}) c[key] = 4;
        c["num_key_value_heads"] = 1;
      }
      const ModelSpec s = spec_of(c);
      EXPECT_EQ(s.arch, of.name);
      EXPECT_EQ(&family_of(s), f);
      EXPECT_NE(describe(s).find(std::string(of.name)), std::string::npos);
      for (const NamedLinear& l : linears_of(s)) EXPECT_GT(l.out * l.in, 0) << l.name;
      if (!of.text.empty()) {
        EXPECT_EQ(s.block_prefix, std::string(of.text) + "layers.");
      }
      c["model_type"] = "something_else";
      EXPECT_TRUE(says(refusal(c, ErrorKind::unsupported), {"model_type", "something_else", of.name.data()}));
    }
}

}  // namespace
}  // namespace fewbit::test
