// Nemotron-H (NVIDIA): a layer is one mixer behind one norm, a state space of Mamba-2, attention without a rotation,
// an MLP of squared ReLU, or experts of it, as a pattern of letters says. Keys and defaults:
// configuration_nemotron_h.py of its checkpoints.
#include <fmt/format.h>

#include <algorithm>

#include "src/model/archs/nemotron/layers.h"

namespace fewbit {
namespace {

constexpr std::string_view kLetters = "M*-E";

// A letter for each layer: hybrid_override_pattern, or the words of transformers 5 (and those of its first releases) in
// layers_block_type.
std::string pattern_of(const ConfigView& c, const DecoderSizes& s) {
  std::string key = "hybrid_override_pattern", letters;
  if (c.has("layers_block_type")) {
    key = "layers_block_type";
    for (const std::string& word : c.str_list(key))
      letters += word == "linear_attention" || word == "mamba"     ? 'M'
                 : word == "full_attention" || word == "attention" ? '*'
                 : word == "mlp"                                   ? '-'
                 : word == "moe"                                   ? 'E'
                                                                   : '?';
  } else {
    letters = c.str(key);
  }
  if (static_cast<int64_t>(letters.size()) != s.layers || letters.find_first_not_of(kLetters) != std::string::npos)
    fail(ErrorKind::checkpoint,
         key == "layers_block_type"
             ? fmt::format("{}: {}: expected {} words of linear_attention, full_attention, mlp and moe, found {}",
                           c.where(), key, s.layers, fmt::join(c.str_list(key), ", "))
             : fmt::format("{}: {}: expected {} letters of {}, found \"{}\"", c.where(), key, s.layers, kLetters,
                           letters));
  return letters;
}

ModelSpec arch_nemotron_h(const ConfigView& c) {
  DecoderSizes s = decoder_sizes(c);
  s.eps = static_cast<float>(c.f64("layer_norm_epsilon", c.f64("norm_eps", 1e-5)));
  const std::string pattern = pattern_of(c, s);
  std::vector<std::vector<BlockOp>> variants(kLetters.size());
  std::vector<int> variant_of_layer;
  for (const char letter : pattern) {
    const size_t which = kLetters.find(letter);
    variant_of_layer.push_back(static_cast<int>(which));
    if (!variants[which].empty()) continue;
    std::vector<BlockOp> ops = {Norm{Slot::x, Slot::h, NormKind::rms, "norm", s.hidden, s.eps}};
    const std::vector<BlockOp> mixer = nemotron_mixer(c, s, letter);
    ops.insert(ops.end(), mixer.begin(), mixer.end());
    ops.push_back(AddTo{Slot::h, Slot::x});
    variants[which] = std::move(ops);
  }
  ModelSpec spec = decoder_spec(c, s, variants, variant_of_layer);
  const bool tied = spec.tied();
  spec.block_prefix = "backbone.layers.";
  spec.embed = "backbone.embeddings.weight";
  spec.final_norm = "backbone.norm_f.weight";
  if (tied) spec.lm_head = spec.embed;
  return spec;
}

}  // namespace

const Family family_nemotron_h = {
    .classes = {{"NemotronHForCausalLM"}},
    .model_types = {"nemotron_h"},
    .build = &arch_nemotron_h,
    .gguf = {.arch = "nemotron_h",
             .arch_with_experts = "nemotron_h_moe",
             .names = {{"norm", "attn_norm"},
                       {"mixer.up_proj", "ffn_up"},
                       {"mixer.down_proj", "ffn_down"},
                       {"mixer.shared_experts.up_proj", "ffn_up_shexp"},
                       {"mixer.shared_experts.down_proj", "ffn_down_shexp"}},
             .has_experts = true,
             .dense_too = true,
             .experts = {.score = RouterScore::sigmoid,
                         .norm_key = true,
                         .anywhere = true,
                         .width_key = true,
                         .count = "n_routed_experts",
                         .width = "moe_intermediate_size",
                         .renormalised = "norm_topk_prob",
                         .scaling = "routed_scaling_factor",
                         .shared_width = "moe_shared_expert_intermediate_size"},
             .recurrent = {.kind = GgufRecurrent::Kind::state_space,
                           .list = GgufRecurrent::List::letters,
                           .heads = "mamba_num_heads",
                           .head_dim = "mamba_head_dim",
                           .groups = "n_groups",
                           .state = "ssm_state_size",
                           .taps = "conv_kernel"},
             .still_period = 1,
             .layer_norms = true,
             .epsilon = "layer_norm_epsilon",
             .presence = {{"use_conv_bias", "blk.*.ssm_conv1d.bias"}, {"attention_bias", "blk.*.attn_q.bias"}},
             .activation_key = "mlp_hidden_act",
             .activation = "relu2"},
};

}  // namespace fewbit
