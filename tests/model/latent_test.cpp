// The families of latent attention: what their configs say, what is refused by name, who absorbs scales, how heads are
// divided among ranks.
#include <cmath>
#include <map>

#include "src/model/absorb.h"
#include "src/model/parallel/tensor_parallel.h"
#include "tests/model/archs_fixture.h"

namespace fewbit::test {
namespace {

json deepseek(const char* class_name) {
  json c = llama();
  c["architectures"] = {class_name};
  c["num_key_value_heads"] = 4;
  c["q_lora_rank"] = 24, c["kv_lora_rank"] = 16;
  c["qk_nope_head_dim"] = 8, c["qk_rope_head_dim"] = 4, c["v_head_dim"] = 12;
  c["n_routed_experts"] = 8, c["num_experts_per_tok"] = 2, c["n_shared_experts"] = 1;
  c["moe_intermediate_size"] = 32, c["first_k_dense_replace"] = 1, c["n_group"] = 1, c["topk_group"] = 1;
  c["index_n_heads"] = 2, c["index_head_dim"] = 8, c["index_topk"] = 6;
  return c;
}

std::vector<std::string> names_of(const ModelSpec& s, int64_t layer) {
  std::vector<std::string> out;
  for (const BlockOp& op : s.block(layer))
    for (const LinearDef& l : linears_of(op))
      if (l.name.starts_with("self_attn.")) out.push_back(l.name.substr(10));
  return out;
}

TEST(Latent, QueriesWithALatentOfTheirOwnOrWithout) {
  json c = deepseek("DeepseekV2ForCausalLM");
  EXPECT_EQ(names_of(spec_of(c), 0),
            (std::vector<std::string>{"q_a_proj", "kv_a_proj_with_mqa", "q_b_proj", "kv_b_proj", "o_proj"}));
  c["q_lora_rank"] = nullptr;  // V2-Lite
  const ModelSpec s = spec_of(c);
  EXPECT_EQ(names_of(s, 0), (std::vector<std::string>{"q_proj", "kv_a_proj_with_mqa", "kv_b_proj", "o_proj"}));
  EXPECT_EQ(slot_features(s, s.block(0), Slot::attn), 4 * 12);
  EXPECT_EQ(slot_features(s, s.block(0), Slot::kv), 4 * (8 + 12));
  EXPECT_TRUE(ops<Moe>(s, 0).empty());
  EXPECT_EQ(ops<Moe>(s, 1).size(), 1u);
}

TEST(Latent, TheRoutersOfV2AndV3) {
  json c = deepseek("DeepseekV2ForCausalLM");
  EXPECT_EQ(ops<Moe>(spec_of(c), 1)[0].score, RouterScore::softmax);
  c["topk_method"] = "group_limited_greedy", c["n_group"] = 8, c["topk_group"] = 3;  // groups of one expert
  EXPECT_EQ(ops<Moe>(spec_of(c), 1)[0].groups, 8);
  EXPECT_EQ(ops<Moe>(spec_of(c), 1)[0].judges, 1);
  c["topk_method"] = "noaux_tc";
  EXPECT_TRUE(says(refusal(c, ErrorKind::unsupported), {"topk_method", "noaux_tc", "group_limited_greedy"}));
  c["topk_method"] = "greedy", c["norm_topk_prob"] = true, c["routed_scaling_factor"] = 16;
  EXPECT_TRUE(says(refusal(c, ErrorKind::unsupported), {"routed_scaling_factor", "norm_topk_prob"}));
  json v3 = deepseek("DeepseekV3ForCausalLM");
  v3["n_group"] = 4, v3["topk_group"] = 2, v3["routed_scaling_factor"] = 2.5, v3["model_type"] = "kimi_k2";
  const Moe moe = ops<Moe>(spec_of(v3), 1)[0];
  EXPECT_EQ(moe.score, RouterScore::sigmoid);
  EXPECT_EQ(moe.judges, 2);
  EXPECT_EQ(moe.correction, "mlp.gate.e_score_correction_bias");
  v3["n_group"] = 8;
  EXPECT_TRUE(says(refusal(v3, ErrorKind::checkpoint), {"n_group", "8 experts"}));
  v3["n_group"] = 1, v3["topk_group"] = 1, v3["scoring_func"] = "softmax";
  EXPECT_TRUE(says(refusal(v3, ErrorKind::unsupported), {"scoring_func", "softmax"}));
}

TEST(Latent, YarnRaisesTheScores) {
  json c = deepseek("DeepseekV3ForCausalLM");
  const double plain = ops<LatentAttention>(spec_of(c), 0)[0].scale;
  EXPECT_NEAR(plain, 1 / std::sqrt(12.), 1e-7);
  c["rope_scaling"] = {{"type", "yarn"},
                       {"factor", 40},
                       {"mscale", 1.0},
                       {"mscale_all_dim", 1.0},
                       {"original_max_position_embeddings", 64},
                       {"beta_fast", 32},
                       {"beta_slow", 1}};
  EXPECT_NEAR(ops<LatentAttention>(spec_of(c), 0)[0].scale / plain, std::pow(0.1 * std::log(40.) + 1, 2), 1e-5);
  EXPECT_EQ(ops<Rope>(spec_of(c), 0)[0].params.attention_scale, 1.f);
}

TEST(Latent, WhichLayersChooseTheirKeys) {
  json c = deepseek("GlmMoeDsaForCausalLM");
  const auto sights = [](const ModelSpec& s) {
    std::string out;
    for (int64_t i = 0; i < s.layers; ++i) {
      const bool own = key_choice_of(s.block(i)), chosen = latent_attention_of(s.block(i))->chosen;
      out += own ? 'F' : chosen ? 'S' : '-';
    }
    return out;
  };
  EXPECT_EQ(sights(spec_of(c)), "FFF");
  EXPECT_EQ(choice_that_lasts(spec_of(c)), 0);
  EXPECT_TRUE(ops<Rope>(spec_of(c), 0)[0].neighbours);  // the indexer's
  c["index_topk_pattern"] = "FSF";
  EXPECT_EQ(sights(spec_of(c)), "FSF");
  EXPECT_EQ(choice_that_lasts(spec_of(c)), 6);
  c["indexer_types"] = {"full", "full", "shared"};
  EXPECT_EQ(sights(spec_of(c)), "FFS");
  c["indexer_types"] = {"shared", "full", "full"};
  EXPECT_TRUE(says(refusal(c, ErrorKind::unsupported), {"indexer_types[0]", "shared"}));
  c.erase("indexer_types"), c.erase("index_topk_pattern");
  c["index_topk_freq"] = 4;
  EXPECT_TRUE(says(refusal(c, ErrorKind::unsupported), {"index_topk_freq", "indexer_types"}));
  json v32 = deepseek("DeepseekV32ForCausalLM");
  EXPECT_FALSE(ops<Rope>(spec_of(v32), 0)[0].neighbours);
  EXPECT_TRUE(ops<Rope>(spec_of(v32), 0)[1].neighbours);  // of queries and keys
  for (const LinearDef& l : linears_of(BlockOp{ops<Linears>(spec_of(v32), 0)[0]}))
    EXPECT_EQ(l.name.find("indexer"), std::string::npos);
}

TEST(Latent, NormsOfTheLatentsAndValuesTakeScales) {
  const ModelSpec s = spec_of(deepseek("GlmMoeDsaForCausalLM"));
  std::map<std::string, std::vector<std::string>> consumers;
  for (const Absorber& a : absorbers_of(s.block(0))) {
    for (const LinearDef& l : a.linears) consumers[a.name].push_back(l.name);
    for (const NamedDense& r : a.routers) consumers[a.name].push_back(r.name);
  }
  const std::string at = "self_attn.";
  EXPECT_EQ(consumers[at + "kv_a_layernorm"], (std::vector<std::string>{at + "kv_b_proj"}));
  EXPECT_EQ(consumers[at + "kv_b_proj"], (std::vector<std::string>{at + "o_proj"}));
  EXPECT_EQ(consumers[at + "q_a_layernorm"], (std::vector<std::string>{at + "q_b_proj", at + "indexer.wq_b"}));
  EXPECT_EQ(consumers["input_layernorm"], (std::vector<std::string>{at + "q_a_proj", at + "kv_a_proj_with_mqa",
                                                                    at + "indexer.wk", at + "indexer.weights_proj"}));
}

TEST(Latent, RanksHaveHeadsAndTheWholeLatent) {
  const ModelSpec whole = spec_of(deepseek("GlmMoeDsaForCausalLM")), part = spec_of_rank(whole, {1, 2});
  EXPECT_EQ(ops<LatentAttention>(part, 0)[0].heads, 2);
  EXPECT_EQ(slot_features(part, part.block(0), Slot::q_nope), 2 * 8);
  EXPECT_EQ(slot_features(part, part.block(0), Slot::kv), 2 * 20);
  EXPECT_EQ(slot_features(part, part.block(0), Slot::latent), 16);
  EXPECT_EQ(slot_features(part, part.block(0), Slot::index_q), 2 * 8);
  const auto share = [&](const std::string& name) {
    for (const BlockOp& op : whole.block(0))
      for (const LinearDef& l : linears_of(op))
        if (l.name == "self_attn." + name) return share_of(whole.block(0), l, {1, 2});
    ADD_FAILURE() << name;
    return LinearShare{};
  };
  EXPECT_EQ(share("kv_b_proj").rows, (std::vector<Range>{{40, 80}}));
  EXPECT_EQ(share("q_b_proj").rows, (std::vector<Range>{{24, 48}}));
  EXPECT_EQ(share("kv_a_proj_with_mqa").out(), 20);
  EXPECT_EQ(share("o_proj").columns, (Range{24, 48}));
}

TEST(Latent, KimiLinearCountsItsLayersFromOne) {
  json c = deepseek("KimiLinearForCausalLM");
  c["num_experts"] = 8, c["num_experts_per_token"] = 2, c["num_shared_experts"] = 1;
  c.erase("n_routed_experts"), c.erase("num_experts_per_tok");
  c["q_lora_rank"] = nullptr, c["mla_use_nope"] = true;
  c["linear_attn_config"] = {{"kda_layers", {1, 3}},
                             {"full_attn_layers", {2}},
                             {"num_heads", 2},
                             {"head_dim", 8},
                             {"short_conv_kernel_size", 4}};
  const ModelSpec s = spec_of(c);
  EXPECT_TRUE(latent_attention_of(s.block(1)));
  EXPECT_TRUE(ops<Rope>(s, 1).empty());
  EXPECT_EQ(ops<DeltaRule>(s, 0)[0].rates(), 16);
  EXPECT_EQ(ops<Moe>(s, 2)[0].gate.name, "w1");
  c["linear_attn_config"]["full_attn_layers"] = {2, 3};
  EXPECT_TRUE(says(refusal(c, ErrorKind::checkpoint), {"full_attn_layers", "3", "twice"}));
  c["linear_attn_config"]["full_attn_layers"] = json::array();
  EXPECT_TRUE(says(refusal(c, ErrorKind::checkpoint), {"linear_attn_config", "1 of 3 layers"}));
  c["linear_attn_config"]["full_attn_layers"] = {2};
  c["mla_use_nope"] = false;
  EXPECT_TRUE(says(refusal(c, ErrorKind::unsupported), {"mla_use_nope"}));
}

}  // namespace
}  // namespace fewbit::test
