// GLM-4 and GLM-4.5 (4.6, 4.7): half of every head turns. GLM-4 norms what attention and the MLP add as well as what
// they read, and has gate and up in one linear. GLM-4.5 is Llama's block with experts whose router adds a correction to
// its scores for the choice alone.
#include <fmt/format.h>

#include <algorithm>

#include "src/model/archs/decoder.h"
#include "src/model/archs/latent.h"

namespace fewbit {
namespace {

using S = Slot;

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
  return decoder_spec(c, s, block);
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
  return decoder_spec(c, s, {dense, sparse}, variant_of_layer);
}

}  // namespace

const Family family_glm4 = {
    .classes = {{"Glm4ForCausalLM"}},
    .model_types = {"glm4"},
    .build = &arch_glm4,
    .gguf = {.arch = "glm4",
             .names = {{"post_self_attn_layernorm", "post_attention_norm"},
                       {"post_attention_layernorm", "ffn_norm"},
                       {"post_mlp_layernorm", "post_ffw_norm"}},
             .pairs = true,
             .partial_rotary = true,
             .presence = {{"attention_bias", "blk.0.attn_q.bias"}}},
};

const Family family_glm4v = {
    .classes = {{"Glm4vForConditionalGeneration", "model.language_model."}},  // GLM-4.1V
    .model_types = {"glm4v"},
    .build = &arch_glm4,
    .keeps = {{"model.visual.*", kVisionTower, true}},
    .gguf = {.why_not = "beside axes of positions its files have heads in another order, which is not written yet"},
};

const Family family_glm4_moe = {
    .classes = {{"Glm4MoeForCausalLM"}},  // GLM-4.5, 4.6, 4.7
    .model_types = {"glm4_moe"},
    .build = &arch_glm4_moe,
    .keeps = {{"mlp.gate_proj", kFirstDense},
              {"mlp.up_proj", kFirstDense},
              {"mlp.down_proj", kFirstDense},
              {"model.layers.*", kNextTokens, true}},
    .gguf = {.arch = "glm4moe",
             .names = {{"post_attention_layernorm", "post_attention_norm"}},
             .has_experts = true,
             .experts = gguf_experts(RouterScore::sigmoid),
             .partial_rotary = true,
             .presence = {{"attention_bias", "blk.0.attn_q.bias"}, {"use_qk_norm", "blk.0.attn_q_norm.weight"}}},
};

}  // namespace fewbit
