// Qwen3: Llama's block with an RMS norm on every head of q and k, before the rotation; alone or as the language model
// of Qwen3-VL. Qwen3-MoE and Qwen2-MoE: the family's block with a mixture of experts for its MLP, except in the layers
// that mlp_only_layers and decoder_sparse_step leave dense. Qwen3 norms the heads of q and k; Qwen2 has biases on q, k,
// v and a shared expert with a gate.
#include <algorithm>

#include "src/model/archs/decoder.h"

namespace fewbit {
namespace {

ModelSpec arch_qwen3(const ConfigView& c) {
  const DecoderSizes s = decoder_sizes(c);
  const bool attention = c.flag("attention_bias", false);
  std::vector<BlockOp> block = decoder_block(c, s, {.qkv = attention, .o = attention});
  add_head_norms(block, s);
  return decoder_spec(c, s, block, qwen_windows(c, s));
}

ModelSpec moe_spec(const ConfigView& c, const DecoderSizes& s, const std::vector<BlockOp>& dense,
                   const std::vector<BlockOp>& sparse) {
  c.must_be_false("use_sliding_window");
  const int64_t step = size_key(c, "decoder_sparse_step", 1);
  const std::vector<int64_t> dense_layers = c.i64_list("mlp_only_layers");
  std::vector<int> variant_of_layer;
  for (int64_t layer = 0; layer < s.layers; ++layer) {
    const bool listed = std::find(dense_layers.begin(), dense_layers.end(), layer) != dense_layers.end();
    variant_of_layer.push_back(!listed && (layer + 1) % step == 0);
  }
  return decoder_spec(c, s, {dense, sparse}, variant_of_layer);
}

std::vector<BlockOp> with_experts(const ConfigView& c, const std::vector<BlockOp>& dense) {
  return moe_block(c, dense, {"mlp.gate", "mlp.experts.", "gate_proj", "up_proj", "down_proj"},
                   size_key(c, "moe_intermediate_size"), c.flag("norm_topk_prob", false));
}

ModelSpec arch_qwen3_moe(const ConfigView& c) {
  const DecoderSizes s = decoder_sizes(c);
  const bool attention = c.flag("attention_bias", false);
  std::vector<BlockOp> dense = decoder_block(c, s, {.qkv = attention, .o = attention});
  add_head_norms(dense, s);
  return moe_spec(c, s, dense, with_experts(c, dense));
}

// The language model of Qwen3-VL's mixtures: stacks whose inputs come before their outputs, and weights of the chosen
// experts that always add up to 1.
ModelSpec arch_qwen3_vl_moe(const ConfigView& c) {
  ModelSpec spec = arch_qwen3_moe(c);
  for (std::vector<BlockOp>& block : spec.kinds)
    for (BlockOp& op : block)
      if (auto* moe = std::get_if<Moe>(&op)) {
        moe->renormalise = true;
        moe->stacked_gate_up = "mlp.experts.gate_up_proj", moe->stacked_down = "mlp.experts.down_proj";
        moe->stacks = Moe::Stacks::turned;
      }
  return spec;
}

ModelSpec arch_qwen2_moe(const ConfigView& c) {
  const DecoderSizes s = decoder_sizes(c);
  const std::vector<BlockOp> dense = decoder_block(c, s, {.qkv = c.flag("qkv_bias", true)});
  std::vector<BlockOp> sparse = with_experts(c, dense);
  add_shared_expert(sparse, "mlp.shared_expert.", size_key(c, "shared_expert_intermediate_size"),
                    "mlp.shared_expert_gate");
  return moe_spec(c, s, dense, sparse);
}

}  // namespace

const Family family_qwen3 = {
    .classes = {{"Qwen3ForCausalLM"}},
    .model_types = {"qwen3"},
    .build = &arch_qwen3,
    .chat = "chatml",
    .gguf = {.arch = "qwen3"},
};

const Family family_qwen3_vl = {
    .classes = {{"Qwen3VLForConditionalGeneration", "model.language_model."}},
    .model_types = {"qwen3_vl"},
    .build = &arch_qwen3,
    .keeps = {{"model.visual.*", kVisionTower, true}},
    .chat = "chatml",
    .gguf = {.arch = "qwen3vl", .read_as = "Qwen3ForCausalLM", .sections = true},
};

const Family family_qwen3_moe = {
    .classes = {{"Qwen3MoeForCausalLM"}},
    .model_types = {"qwen3_moe"},
    .build = &arch_qwen3_moe,
    .chat = "chatml",
    .gguf = {.arch = "qwen3moe",
             .has_experts = true,
             .experts = {.width_key = true,
                         .count = "num_experts",
                         .width = "moe_intermediate_size",
                         .renormalised = "norm_topk_prob"}},
};

const Family family_qwen3_vl_moe = {
    .classes = {{"Qwen3VLMoeForConditionalGeneration", "model.language_model."}},
    .model_types = {"qwen3_vl_moe"},
    .build = &arch_qwen3_vl_moe,
    .keeps = {{"model.visual.*", kVisionTower, true}},
    .chat = "chatml",
    .gguf = {.arch = "qwen3vlmoe",
             .read_as = "Qwen3MoeForCausalLM",
             .has_experts = true,
             .experts = {.width_key = true,
                         .count = "num_experts",
                         .width = "moe_intermediate_size",
                         .renormalised = "norm_topk_prob"},
             .sections = true},
};

const Family family_qwen2_moe = {
    .classes = {{"Qwen2MoeForCausalLM"}},
    .model_types = {"qwen2_moe"},
    .build = &arch_qwen2_moe,
    .chat = "chatml",
    .gguf = {.arch = "qwen2moe",
             .has_experts = true,
             .experts = {.renormalise = false,
                         .width_key = true,
                         .count = "num_experts",
                         .width = "moe_intermediate_size",
                         .renormalised = "norm_topk_prob",
                         .shared_width = "shared_expert_intermediate_size"},
             .square = true,
             .tied = false,
             .presence = {{"qkv_bias", "blk.0.attn_q.bias"}}},
};

}  // namespace fewbit
