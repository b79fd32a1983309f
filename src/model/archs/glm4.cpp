// GLM-4, GLM-4.5 and its look-alikes: half of every head turns. GLM-4 norms what attention and the MLP add as well as
// what they read, and has gate and up in one linear. GLM-4.5 (4.6, 4.7), MiniMax-M2 and ERNIE 4.5 are Llama's block
// with experts whose router adds a correction to its scores for the choice alone.
#include <algorithm>

#include "src/model/archs/decoder.h"
#include "src/model/archs/latent.h"

namespace fewbit {
namespace {

using S = Slot;

std::vector<int64_t> no_windows(const DecoderSizes& s) {
  return std::vector<int64_t>(static_cast<size_t>(s.layers), 0);
}

Moe& experts_of(std::vector<BlockOp>& block) {
  return std::get<Moe>(
      *std::find_if(block.begin(), block.end(), [](const BlockOp& op) { return std::holds_alternative<Moe>(op); }));
}

void correct(Moe& moe, const std::string& name, const Shape& shape) {
  moe.correction = name;
  moe.correction_shape = shape;
}

}  // namespace

ModelSpec arch_glm4(const ConfigView& c) {
  DecoderSizes s = decoder_sizes(c);
  s.partial = 0.5;
  std::vector<BlockOp> block;
  for (BlockOp& op : decoder_block(c, s, {.qkv = c.flag("attention_bias", false)})) {
    if (auto* linears = std::get_if<Linears>(&op); linears && linears->items.front().name == "mlp.gate_proj") {
      block.push_back(Linears{S::h, {{"mlp.gate_up_proj", S::gate_up, 2 * s.intermediate, s.hidden}}});
      block.push_back(Split{S::gate_up, {{S::gate, s.intermediate}, {S::up, s.intermediate}}});
      continue;
    }
    if (std::holds_alternative<AddTo>(op)) {
      const bool mlp =
          std::any_of(block.begin(), block.end(), [](const BlockOp& o) { return std::holds_alternative<GatedAct>(o); });
      block.push_back(
          Norm{S::h, S::h, NormKind::rms, mlp ? "post_mlp_layernorm" : "post_self_attn_layernorm", s.hidden, s.eps});
    }
    block.push_back(std::move(op));
  }
  turn_neighbours(block);
  return decoder_spec(c, s, block, no_windows(s));
}

ModelSpec arch_glm4_moe(const ConfigView& c) {
  DecoderSizes s = decoder_sizes(c);
  s.partial = 0.5;
  std::vector<BlockOp> dense = decoder_block(c, s, {.qkv = c.flag("attention_bias", false)});
  if (c.flag("use_qk_norm", false)) add_head_norms(dense, s);
  const int64_t width = size_key(c, "moe_intermediate_size"), shared = size_key(c, "n_shared_experts", 1);
  std::vector<BlockOp> sparse = moe_block(c, dense, {"mlp.gate", "mlp.experts.", "gate_proj", "up_proj", "down_proj"},
                                          width, c.flag("norm_topk_prob", true));
  Moe& moe = experts_of(sparse);
  moe.score = RouterScore::sigmoid;
  moe.scaling = static_cast<float>(c.f64("routed_scaling_factor", 1));
  group_experts(c, moe, "n_group");
  correct(moe, "mlp.gate.e_score_correction_bias", {moe.experts});
  add_shared_expert(sparse, "mlp.shared_experts.", shared * width, "");
  std::vector<int> variant_of_layer;
  for (int64_t i = 0; i < s.layers; ++i) variant_of_layer.push_back(i >= c.i64("first_k_dense_replace", 1));
  return decoder_spec(c, s, {dense, sparse}, variant_of_layer, no_windows(s));
}

ModelSpec arch_minimax_m2(const ConfigView& c) {
  DecoderSizes s = decoder_sizes(c);
  if (c.has("rotary_dim")) s.partial = static_cast<double>(size_key(c, "rotary_dim")) / static_cast<double>(s.head_dim);
  c.must_equal("scoring_func", "sigmoid");
  c.must_equal("qk_norm_type", "per_layer");
  c.must_be_true("use_qk_norm");
  if (c.i64("shared_intermediate_size", 0) != 0)
    fail(ErrorKind::unsupported, c.where() + ": shared_intermediate_size: only 0 is supported");
  for (const int64_t type : c.i64_list("attn_type_list"))
    if (type != 1) fail(ErrorKind::unsupported, c.where() + ": attn_type_list: only 1 (full attention) is supported");
  std::vector<BlockOp> block = decoder_block(c, s, {});
  add_whole_norms(block, s);
  block = moe_block(c, block, {"block_sparse_moe.gate", "block_sparse_moe.experts.", "w1", "w3", "w2"}, s.intermediate,
                    true);
  Moe& moe = experts_of(block);
  moe.score = RouterScore::sigmoid;
  if (c.flag("use_routing_bias", true)) correct(moe, "block_sparse_moe.e_score_correction_bias", {moe.experts});
  return decoder_spec(c, s, block, mistral_windows(c, s));
}

ModelSpec arch_ernie4_5_moe(const ConfigView& c) {
  const DecoderSizes s = decoder_sizes(c);
  c.must_be_false("use_bias");
  std::vector<BlockOp> dense = decoder_block(c, s, {});
  turn_neighbours(dense);
  const int64_t width = size_key(c, "moe_intermediate_size"), shared = c.i64("moe_num_shared_experts", 2);
  std::vector<BlockOp> sparse =
      moe_block(c, dense, {"mlp.gate", "mlp.experts.", "gate_proj", "up_proj", "down_proj"}, width, true);
  Moe& moe = experts_of(sparse);
  correct(moe, "mlp.moe_statics.e_score_correction_bias", {1, moe.experts});
  if (shared > 0) add_shared_expert(sparse, "mlp.shared_experts.", shared * width, "");
  const int64_t first = c.i64("moe_layer_start_index", 1), last = c.i64("moe_layer_end_index", -1),
                interval = size_key(c, "moe_layer_interval", 1);
  std::vector<int> variant_of_layer;
  for (int64_t i = 0; i < s.layers; ++i)
    variant_of_layer.push_back((i + 1) % interval == 0 && i >= first && (last < 0 || i <= last));
  return decoder_spec(c, s, {dense, sparse}, variant_of_layer, no_windows(s));
}

}  // namespace fewbit
