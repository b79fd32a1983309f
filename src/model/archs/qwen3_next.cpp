// Qwen3-Next and Qwen3.5 (3.6, 3.8): three layers of a gated delta net to one of gated attention, all norms but the
// delta net's own around zero. Keys and defaults: configuration_qwen3_next.py and configuration_qwen3_5.py of Hugging
// Face transformers. Qwen3-Next keeps q, k, v, z of the delta net in one linear, by key head, and its experts apart;
// Qwen3.5 has four linears and stacked experts, and may stand inside of a vision model.
#include <algorithm>

#include "src/model/archs/delta_net.h"

namespace fewbit {
namespace {

using S = Slot;

// Behind either mixer; with experts where `moe` is set.
std::vector<BlockOp> with_mlp(const ConfigView& c, const DecoderSizes& s, std::vector<BlockOp> ops, bool moe,
                              bool renormalise) {
  const std::vector<BlockOp> norm = {Norm{S::x, S::h, kNextNorm, "post_attention_layernorm", s.hidden, s.eps}};
  ops.insert(ops.end(), norm.begin(), norm.end());
  std::vector<BlockOp> mlp = gated_mlp("mlp.", s.hidden, s.intermediate, S::h);
  mlp.push_back(AddTo{S::h, S::x});
  if (moe) {
    const int64_t width = size_key(c, "moe_intermediate_size");
    mlp = moe_block(c, mlp, {"mlp.gate", "mlp.experts.", "gate_proj", "up_proj", "down_proj"}, width, renormalise);
    Moe& experts = std::get<Moe>(mlp[0]);
    experts.stacked_gate_up = "mlp.experts.gate_up_proj", experts.stacked_down = "mlp.experts.down_proj";
    add_shared_expert(mlp, "mlp.shared_expert.", size_key(c, "shared_expert_intermediate_size"),
                      "mlp.shared_expert_gate");
  }
  ops.insert(ops.end(), mlp.begin(), mlp.end());
  return ops;
}

// Which layers are attention.
std::vector<bool> attention_layers(const ConfigView& c, const DecoderSizes& s) {
  const std::vector<std::string> types = layer_types(c, s, {"full_attention", "linear_attention"});
  const int64_t interval = size_key(c, "full_attention_interval", 4);
  std::vector<bool> out;
  for (int64_t i = 0; i < s.layers; ++i)
    out.push_back(types.empty() ? (i + 1) % interval == 0 : types[static_cast<size_t>(i)] == "full_attention");
  return out;
}

ModelSpec qwen_next_spec(const ConfigView& c, const DecoderSizes& s, bool fused, bool moe, bool renormalise) {
  c.must_equal("hidden_act", "silu");
  c.must_be_true("attn_output_gate");
  c.must_be_false("use_sliding_window");
  const int64_t step = size_key(c, "decoder_sparse_step", 1);
  const std::vector<int64_t> dense = c.i64_list("mlp_only_layers");
  std::vector<std::vector<BlockOp>> variants;  // delta net, attention; with an MLP, with experts
  for (const bool sparse : {false, true})
    for (const bool attention : {false, true}) {
      if (sparse && !moe) continue;
      std::vector<BlockOp> mixer = attention ? gated_attention(c, s) : delta_net(c, s, fused);
      variants.push_back(with_mlp(c, s, std::move(mixer), sparse, renormalise));
    }
  const std::vector<bool> attention = attention_layers(c, s);
  std::vector<int> variant_of_layer;
  for (int64_t i = 0; i < s.layers; ++i) {
    const bool listed = std::find(dense.begin(), dense.end(), i) != dense.end();
    const bool sparse = moe && !listed && (i + 1) % step == 0;
    variant_of_layer.push_back((sparse ? 2 : 0) + (attention[static_cast<size_t>(i)] ? 1 : 0));
  }
  ModelSpec spec = decoder_spec(c, s, variants, variant_of_layer);
  spec.final_norm_kind = kNextNorm;
  return spec;
}

ModelSpec arch_qwen3_next(const ConfigView& c) {
  return qwen_next_spec(c, decoder_sizes(c), true, true, c.flag("norm_topk_prob", true));
}

ModelSpec arch_qwen3_5(const ConfigView& c) { return qwen_next_spec(c, decoder_sizes(c), false, false, true); }

ModelSpec arch_qwen3_5_moe(const ConfigView& c) { return qwen_next_spec(c, decoder_sizes(c), false, true, true); }

}  // namespace

const Family family_qwen3_next = {
    .classes = {{"Qwen3NextForCausalLM"}},
    .model_types = {"qwen3_next"},
    .build = &arch_qwen3_next,
    .keeps = {{"mtp.*", kNextTokens, true}},
    .chat = "chatml",
    .gguf = {.arch = "qwen3next",
             .names = {{"post_attention_layernorm", "post_attention_norm"}},
             .has_experts = true,
             .experts = {.width_key = true,
                         .count = "num_experts",
                         .width = "moe_intermediate_size",
                         .renormalised = "norm_topk_prob",
                         .shared_width = "shared_expert_intermediate_size"},
             .partial_rotary = true,
             .delta_net = true},
};

const Family family_qwen3_5 = {
    // 3.6 and 3.8 too
    .classes = {{"Qwen3_5ForConditionalGeneration", "model.language_model."}, {"Qwen3_5ForCausalLM"}},
    .model_types = {"qwen3_5", "qwen3_5_text"},
    .build = &arch_qwen3_5,
    .keeps = {{"mtp.*", kNextTokens, true}, {"model.visual.*", kVisionTower, true}},
    .chat = "chatml",
    .gguf = {.arch = "qwen35",
             .read_as = "Qwen3_5ForCausalLM",
             .names = {{"post_attention_layernorm", "post_attention_norm"}},
             .partial_rotary = true,
             .delta_net = true,
             .tiled = true,
             .sections = true,
             .usual_sections = "[11, 11, 10]"},
};

const Family family_qwen3_5_moe = {
    .classes = {{"Qwen3_5MoeForConditionalGeneration", "model.language_model."}, {"Qwen3_5MoeForCausalLM"}},
    .model_types = {"qwen3_5_moe", "qwen3_5_moe_text"},
    .build = &arch_qwen3_5_moe,
    .keeps = {{"mtp.*", kNextTokens, true}, {"model.visual.*", kVisionTower, true}},
    .chat = "chatml",
    .gguf = {.arch = "qwen35moe",
             .read_as = "Qwen3_5MoeForCausalLM",
             .names = {{"post_attention_layernorm", "post_attention_norm"}},
             .has_experts = true,
             .experts = {.width_key = true,
                         .count = "num_experts",
                         .width = "moe_intermediate_size",
                         .shared_width = "shared_expert_intermediate_size"},
             .partial_rotary = true,
             .delta_net = true,
             .tiled = true,
             .sections = true,
             .usual_sections = "[11, 11, 10]"},
};

}  // namespace fewbit
