// How ops are divided among ranks, and shares of linears cut out of what a checkpoint stores.
#include "src/model/parallel/tensor_parallel.h"

#include "tests/formats/packing_fixture.h"
#include "tests/model/archs_fixture.h"

namespace fewbit::test {
namespace {

LinearShare share(const ModelSpec& spec, const std::string& name, RankPart part) {
  for (const BlockOp& op : spec.block(0))
    for (const LinearDef& l : linears_of(op))
      if (l.name == name) return share_of(spec.block(0), l, part);
  ADD_FAILURE() << name;
  return {};
}

using Ranges = std::vector<Range>;

TEST(TensorParallel, HeadsAndFeaturesAreDividedInOrder) {
  const ModelSpec spec = spec_of(llama());  // 4 heads of 16, 2 key/value heads
  EXPECT_EQ(share(spec, "self_attn.q_proj", {1, 2}).rows, (Ranges{{32, 64}}));
  EXPECT_EQ(share(spec, "self_attn.k_proj", {1, 2}).rows, (Ranges{{16, 32}}));
  EXPECT_EQ(share(spec, "self_attn.k_proj", {1, 2}).columns, (Range{0, 64}));
  EXPECT_EQ(share(spec, "self_attn.o_proj", {1, 2}).rows, (Ranges{{0, 64}}));
  EXPECT_EQ(share(spec, "self_attn.o_proj", {1, 2}).columns, (Range{32, 64}));
  EXPECT_EQ(share(spec, "mlp.up_proj", {0, 2}).rows, (Ranges{{0, 48}}));
  EXPECT_EQ(share(spec, "mlp.down_proj", {1, 2}).columns, (Range{48, 96}));
  // Two of four ranks have a key/value head together.
  EXPECT_EQ(share(spec, "self_attn.v_proj", {1, 4}).rows, (Ranges{{0, 16}}));
  EXPECT_EQ(share(spec, "self_attn.v_proj", {2, 4}).rows, (Ranges{{16, 32}}));
  const ModelSpec part = spec_of_rank(spec, {1, 4});
  EXPECT_EQ(ops<Attention>(part, 0)[0].heads, 1);
  EXPECT_EQ(ops<Attention>(part, 0)[0].kv_heads, 1);
  EXPECT_EQ(slot_features(part, part.block(0), Slot::act), 24);
  EXPECT_EQ(slot_features(part, part.block(0), Slot::h), 64);
}

TEST(TensorParallel, OnlySumsAreSummedAndTheirBiasIsAddedOnce) {
  json config = llama();
  config["attention_bias"] = config["mlp_bias"] = true;
  const ModelSpec spec = spec_of(config);
  for (const Linears& op : ops<Linears>(spec_of_rank(spec, {1, 2}), 0)) {
    const std::string& name = op.items[0].name;
    EXPECT_EQ(op.summed, name == "self_attn.o_proj" || name == "mlp.down_proj") << name;
    EXPECT_TRUE(share(spec, name, {0, 2}).bias) << name;
    EXPECT_EQ(share(spec, name, {1, 2}).bias, !op.summed) << name;
  }
  for (const Linears& op : ops<Linears>(spec_of_rank(spec, {}), 0)) EXPECT_FALSE(op.summed);
}

TEST(TensorParallel, FusedLinearsAreDividedPartByPart) {
  json config = llama();
  config["architectures"] = {"Phi3ForCausalLM"};
  const ModelSpec spec = spec_of(config);
  EXPECT_EQ(share(spec, "self_attn.qkv_proj", {1, 2}).rows, (Ranges{{32, 64}, {80, 96}, {112, 128}}));
  EXPECT_EQ(share(spec, "mlp.gate_up_proj", {0, 2}).rows, (Ranges{{0, 48}, {96, 144}}));
  EXPECT_EQ(slot_features(spec, spec_of_rank(spec, {1, 2}).block(0), Slot::qkv), 64);
}

TEST(TensorParallel, ExpertsAreWholeAndTheRanksOwn) {
  json config = llama();
  config["architectures"] = {"MixtralForCausalLM"};
  config["num_local_experts"] = 8, config["num_experts_per_tok"] = 2;
  const ModelSpec spec = spec_of(config), part = spec_of_rank(spec, {1, 2});
  const std::vector<LinearDef> own = linears_of(BlockOp{ops<Moe>(part, 0)[0]});
  ASSERT_EQ(own.size(), 12u);
  EXPECT_EQ(own[0].name, "block_sparse_moe.experts.4.w1");
  EXPECT_EQ(share(spec, own[0].name, {1, 2}).out(), 96);
  EXPECT_EQ(share(spec, own[0].name, {1, 2}).in(), 64);
}

// The share of a neutral form has the values that the share of its values has.
TEST(TensorParallel, SharesOfPackedLinearsKeepTheirValues) {
  const QuantSpec fp8_blocks{.grid = Grid::f8_e4m3, .bits = 8, .group = 32, .scale_dtype = DType::f32, .out_group = 32};
  QuantSpec per_tensor = fp8_blocks;
  per_tensor.group = -1, per_tensor.out_group = 96;
  const QuantSpec specs[] = {
      {.bits = 4, .group = 32, .symmetric = false}, {.bits = 8, .group = -1}, kNvfp4, kMxfp4, fp8_blocks, per_tensor};
  const LinearShare shares[] = {whole_share(96, 128),
                                {.rows = {{32, 64}}, .columns = {0, 128}},
                                {.rows = {{0, 32}, {64, 96}}, .columns = {0, 128}},
                                {.rows = {{0, 96}}, .columns = {64, 128}}};
  for (const QuantSpec& spec : specs)
    for (const LinearShare& s : shares) {
      const QuantizedLinear q = random_linear(spec, 96, 128, Order::consecutive);
      ASSERT_EQ(share_refusal(spec, false, 96, 128, s), "") << spec.str();
      EXPECT_EQ(first_difference(dequantize_reference(cut(q, s)), cut(dequantize_reference(q), s)), "") << spec.str();
    }
  const QuantizedLinear turned = random_linear(specs[0], 96, 128, Order::shuffled);
  EXPECT_EQ(
      first_difference(dequantize_reference(cut(turned, shares[1])), cut(dequantize_reference(turned), shares[1])), "");
}

TEST(TensorParallel, SharesThatCutAScaleAreRefused) {
  const LinearShare rows{.rows = {{48, 96}}, .columns = {0, 128}}, columns{.rows = {{0, 96}}, .columns = {0, 48}};
  const QuantSpec grouped{.group = 32}, by_row{.group = -1}, blocks{.group = 32, .out_group = 32};
  EXPECT_EQ(share_refusal(grouped, true, 96, 128, rows), "");
  EXPECT_EQ(share_refusal(by_row, false, 96, 128, columns), "");
  EXPECT_EQ(share_refusal(grouped, false, 96, 128, columns), "inputs 0 to 48 are no whole groups of 32");
  EXPECT_NE(share_refusal(grouped, true, 96, 128, columns).find("act-order"), std::string::npos);
  EXPECT_EQ(share_refusal(blocks, false, 96, 128, rows), "outputs 48 to 96 are no whole blocks of 32");
}

}  // namespace
}  // namespace fewbit::test
