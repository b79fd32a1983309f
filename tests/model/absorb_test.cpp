// Who can take a scale out of an input: derived from op lists, so tested on op lists.
#include "src/model/absorb.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "src/model/archs.h"

namespace fewbit::test {
namespace {

using S = Slot;

ModelSpec decoder(const std::string& arch, int kv_heads) {
  const nlohmann::json config = {{"architectures", {arch}},  {"hidden_size", 64},
                                 {"intermediate_size", 96},  {"num_hidden_layers", 1},
                                 {"num_attention_heads", 4}, {"num_key_value_heads", kv_heads},
                                 {"vocab_size", 50},         {"rms_norm_eps", 1e-5},
                                 {"hidden_act", "silu"},     {"max_position_embeddings", 512},
                                 {"bos_token_id", 0},        {"eos_token_id", 1},
                                 {"num_local_experts", 3},   {"num_experts_per_tok", 2}};
  return build_spec(ConfigView::parse(config.dump(), "config.json"));
}

TEST(Absorb, ADecoderBlockHasFour) {
  for (const char* arch : {"LlamaForCausalLM", "Qwen3ForCausalLM"}) {
    SCOPED_TRACE(arch);
    const ModelSpec spec = decoder(arch, 4);
    const std::vector<BlockOp>& ops = spec.block(0);
    const std::vector<Absorber> all = absorbers_of(ops);
    ASSERT_EQ(all.size(), 4u);
    const std::vector<std::string> names = {"input_layernorm", "self_attn.v_proj", "post_attention_layernorm",
                                            "mlp.up_proj"};
    const std::vector<std::string> firsts = {"self_attn.q_proj", "self_attn.o_proj", "mlp.gate_proj", "mlp.down_proj"};
    for (size_t i = 0; i < all.size(); ++i) {
      EXPECT_EQ(all[i].name, names[i]);
      EXPECT_EQ(all[i].kind, i % 2 == 0 ? Absorber::Kind::norm : Absorber::Kind::linear_rows);
      ASSERT_EQ(all[i].consumers.size(), 1u);
      const LinearDef& first = std::get<Linears>(ops[all[i].consumers[0]]).items.front();
      EXPECT_EQ(first.name, firsts[i]);
      EXPECT_EQ(all[i].features * all[i].repeat, first.in_features);
    }
  }
}

TEST(Absorb, NormsBehindLinearsTakeNothing) {
  const std::vector<Absorber> all = absorbers_of(decoder("Gemma2ForCausalLM", 4).block(0));
  std::string names;
  for (const Absorber& a : all) names += a.name + " ";
  EXPECT_EQ(names, "input_layernorm self_attn.v_proj pre_feedforward_layernorm mlp.up_proj ");
}

TEST(Absorb, RowsOfAFusedLinearAreLeftAlone) {
  const std::vector<BlockOp> ops = decoder("Phi3ForCausalLM", 4).block(0);
  std::string names;
  for (const Absorber& a : absorbers_of(ops)) names += a.name + " ";
  EXPECT_EQ(names, "input_layernorm post_attention_layernorm ");
}

TEST(Absorb, GroupedQueryHeadsShareTheFeaturesOfTheirKvHead) {
  const ModelSpec spec = decoder("LlamaForCausalLM", 2);  // 4 query heads of 16 on 2 kv heads
  const Absorber v = absorbers_of(spec.block(0))[1];
  EXPECT_EQ(v.name, "self_attn.v_proj");
  EXPECT_EQ(v.repeat, 2);
  EXPECT_EQ(v.features, 32);
  for (int64_t j = 0; j < 64; ++j) EXPECT_EQ(v.source(j), j / 32 * 16 + j % 16) << j;
}

TEST(Absorb, AMixtureHasOneInFrontAndOneInsideEachExpert) {
  const ModelSpec spec = decoder("MixtralForCausalLM", 4);
  const std::vector<BlockOp>& ops = spec.block(0);
  const std::vector<Absorber> all = absorbers_of(ops);
  std::string names;
  for (const Absorber& a : all) names += a.name + " ";
  EXPECT_EQ(names,
            "input_layernorm self_attn.v_proj post_attention_layernorm block_sparse_moe.experts.0.w3 "
            "block_sparse_moe.experts.1.w3 block_sparse_moe.experts.2.w3 ");
  const auto named = [](const Absorber& a) {
    std::string s;
    for (const LinearDef& l : a.linears) s += l.name.substr(l.name.find("experts.") + 8) + " ";
    return s;
  };
  EXPECT_EQ(named(all[2]), "0.w1 0.w3 1.w1 1.w3 2.w1 2.w3 ");
  ASSERT_EQ(all[2].routers.size(), 1u);
  EXPECT_EQ(all[2].routers[0].name, "block_sparse_moe.gate");
  EXPECT_EQ(all[2].routers[0].shape, (Shape{3, 64}));
  EXPECT_EQ(all[2].expert, -1);
  for (int e = 0; e < 3; ++e) {
    const Absorber& a = all[static_cast<size_t>(3 + e)];
    EXPECT_EQ(a.kind, Absorber::Kind::linear_rows);
    EXPECT_EQ(named(a), std::to_string(e) + ".w2 ");
    EXPECT_TRUE(a.routers.empty());
    EXPECT_EQ(a.expert, e);
    EXPECT_EQ(a.features, 96);
  }
}

const Norm kNorm{S::x, S::h, NormKind::rms, "norm", 8, 1e-5f};
Linears linears(S in, const std::string& name, S out) { return {in, {{name, out, 8, 8, false}}}; }

TEST(Absorb, AnInputReadByTwoOpsHasOneEntryWithBoth) {
  const std::vector<BlockOp> ops = {kNorm, linears(S::h, "a", S::gate), linears(S::h, "b", S::up),
                                    GatedAct{S::gate, S::up, S::act, Activation::silu}};
  const std::vector<Absorber> all = absorbers_of(ops);
  ASSERT_EQ(all.size(), 1u);
  EXPECT_EQ(all[0].consumers, (std::vector<size_t>{1, 2}));
}

TEST(Absorb, NothingWhereSomeoneElseReadsTheInput) {
  // The norm's output is also added to the states.
  EXPECT_TRUE(absorbers_of({kNorm, linears(S::h, "a", S::q), AddTo{S::h, S::x}}).empty());
  // The states themselves, which leave the block.
  EXPECT_TRUE(absorbers_of({linears(S::x, "a", S::q)}).empty());
  EXPECT_TRUE(absorbers_of({Norm{S::x, S::x, NormKind::rms, "norm", 8, 1e-5f}, linears(S::x, "a", S::q)}).empty());
}

// Of gated attention v absorbs before o: its heads are repeated, and the gate scales what they give.
TEST(Absorb, AGateIsLookedThrough) {
  const Attention attention{
      .q = S::q, .k = S::k, .v = S::v, .out = S::attn, .heads = 2, .kv_heads = 1, .head_dim = 8, .scale = 1};
  std::vector<BlockOp> ops = {linears(S::x, "q", S::q),
                              linears(S::x, "k", S::k),
                              linears(S::x, "v", S::v),
                              linears(S::x, "gate", S::z),
                              attention,
                              SigmoidGate{S::z, S::attn, S::attn},
                              linears(S::attn, "o", S::h)};
  ASSERT_EQ(absorbers_of(ops).size(), 1u);
  const Absorber a = absorbers_of(ops)[0];
  EXPECT_EQ(a.name, "v");
  EXPECT_EQ(a.repeat, 2);
  EXPECT_EQ(a.consumers, std::vector<size_t>{6});
  std::get<SigmoidGate>(ops[5]).out = S::gate;  // into a slot of its own
  std::get<Linears>(ops[6]).in = S::gate;
  EXPECT_EQ(absorbers_of(ops).size(), 1u);
  ops.insert(ops.begin() + 6, AddTo{S::attn, S::x});  // who else reads what the attention gave
  EXPECT_TRUE(absorbers_of(ops).empty());
  ops.erase(ops.begin() + 6);
  std::get<SigmoidGate>(ops[5]).gate = S::attn;  // x * sigmoid(x)
  EXPECT_TRUE(absorbers_of(ops).empty());
}

// A norm by heads has one weight for all of them; the gate behind it scales what it gives.
TEST(Absorb, TheNormOfADeltaNetTakesTheScalesOfAllHeads) {
  std::vector<BlockOp> ops = {linears(S::x, "z", S::z), ShortConv{S::qkv, S::attn, "conv1d", 8, 4},
                              HeadNorm{S::attn, NormKind::rms, "norm", 4, 1e-5f},
                              GatedAct{S::z, S::attn, S::attn, Activation::silu}, linears(S::attn, "out", S::h)};
  ASSERT_EQ(absorbers_of(ops).size(), 1u);
  const Absorber a = absorbers_of(ops)[0];
  EXPECT_EQ(a.kind, Absorber::Kind::norm);
  EXPECT_EQ(a.name, "norm");
  EXPECT_EQ(a.features, 4);
  EXPECT_EQ(a.repeat, 2);
  EXPECT_TRUE(a.gated);
  for (int64_t j = 0; j < 8; ++j) EXPECT_EQ(a.source(j), j % 4) << j;
  std::get<HeadNorm>(ops[2]).name = "";  // nothing is stored that could be divided
  EXPECT_TRUE(absorbers_of(ops).empty());
  ops[2] = Scale{S::attn, "norm.weight", 8};  // of every feature its own
  ASSERT_EQ(absorbers_of(ops).size(), 1u);
  EXPECT_EQ(absorbers_of(ops)[0].name, "norm");
  EXPECT_EQ(absorbers_of(ops)[0].features, 8);
  ops[2] = Scale{S::attn, "scale", 1};  // one for all
  EXPECT_TRUE(absorbers_of(ops).empty());
  ops[2] = HeadNorm{S::attn, NormKind::rms, "norm", 4, 1e-5f};
  std::get<GatedAct>(ops[3]).limit = 7;  // a clamp is not linear
  EXPECT_TRUE(absorbers_of(ops).empty());
}

// A head's rows of kv_b are its key and then its value: only those of values take scales.
TEST(Absorb, LatentAttentionPassesScalesToTheValuesOfEachHead) {
  LatentAttention attention{.q_nope = S::q_nope,
                            .q_rope = S::q_rope,
                            .kv = S::kv,
                            .k_rope = S::k_rope,
                            .latent = S::latent,
                            .out = S::attn,
                            .kv_b = "kv_b",
                            .heads = 2,
                            .nope = 3,
                            .rope = 2,
                            .value = 4,
                            .rank = 8,
                            .scale = 1};
  std::vector<BlockOp> ops = {Linears{S::latent, {{"kv_b", S::kv, 14, 8, false}}}, attention,
                              linears(S::attn, "o", S::h)};
  ASSERT_EQ(absorbers_of(ops).size(), 1u);
  const Absorber a = absorbers_of(ops)[0];
  EXPECT_EQ(a.name, "kv_b");
  EXPECT_EQ(a.kind, Absorber::Kind::linear_rows);
  EXPECT_EQ(a.features, 8);
  EXPECT_EQ(a.repeat, 1);
  for (int64_t j = 0; j < 8; ++j) {
    EXPECT_EQ(a.source(j), j);
    EXPECT_EQ(a.at(j), j / 4 * 7 + 3 + j % 4) << j;
  }
  ops.insert(ops.begin() + 2, AddTo{S::kv, S::x});  // who else reads keys and values
  EXPECT_TRUE(absorbers_of(ops).empty());
}

TEST(Absorb, NothingWhereTheProducerIsNotScalable) {
  const Attention attention{
      .q = S::q,
      .k = S::k,
      .v = S::v,
      .out = S::attn,
      .heads = 1,
      .kv_heads = 1,
      .head_dim = 8,
      .scale = 1,
  };
  const std::vector<BlockOp> head = {linears(S::x, "q", S::q), linears(S::x, "k", S::k), linears(S::x, "v", S::v)};
  std::vector<BlockOp> plain = head;
  plain.push_back(attention);
  plain.push_back(linears(S::attn, "o", S::h));
  EXPECT_EQ(absorbers_of(plain).size(), 1u);
  std::vector<BlockOp> normed = head;  // a norm of v undoes any scale
  normed.push_back(HeadNorm{S::v, NormKind::rms, "v_norm", 8, 1e-5f});
  normed.push_back(attention);
  normed.push_back(linears(S::attn, "o", S::h));
  EXPECT_TRUE(absorbers_of(normed).empty());
  std::vector<BlockOp> read_again = plain;  // v goes on living behind the attention
  read_again.push_back(AddTo{S::v, S::x});
  EXPECT_TRUE(absorbers_of(read_again).empty());
  std::vector<BlockOp> shared = plain;  // keys and values are one tensor
  std::get<Attention>(shared[3]).k = S::v;
  EXPECT_TRUE(absorbers_of(shared).empty());
}

}  // namespace
}  // namespace fewbit::test
