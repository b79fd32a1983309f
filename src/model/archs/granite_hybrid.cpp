// Granite 4 (IBM): the hybrids, with a state space of Mamba-2 in place of attention in most layers, and an MLP beside
// the experts. Keys and defaults: configuration_granitemoehybrid.py of Hugging Face transformers.
#include "src/model/archs/granite.h"
#include "src/model/archs/mamba2.h"

namespace fewbit {
namespace {

using S = Slot;

// Behind either mixer: an MLP whose gate and up are one linear, beside experts where there are some.
std::vector<BlockOp> shared_mlp(const ConfigView& c, const DecoderSizes& s) {
  const int64_t width = size_key(c, "shared_intermediate_size");
  const bool sparse = c.i64("num_local_experts", 0) > 0;
  std::vector<BlockOp> ops = {
      Norm{S::x, S::h, NormKind::rms, "post_attention_layernorm", s.hidden, s.eps},
      Linears{S::h, {{"shared_mlp.input_linear", S::gate_up, 2 * width, s.hidden}}},
      Split{S::gate_up, {{S::gate, width}, {S::up, width}}},
      GatedAct{S::gate, S::up, S::act, Activation::silu},
      Linears{S::act, {{"shared_mlp.output_linear", sparse ? S::shared : S::h, s.hidden, width}}},
  };
  if (sparse) {
    for (const BlockOp& op : granite_experts(c, s, granite_block(c, s)))
      if (std::holds_alternative<Moe>(op)) ops.push_back(op);  // last, for it writes where all of them read
    ops.push_back(AddTo{S::shared, S::h});
  }
  ops.push_back(AddTo{S::h, S::x});
  return ops;
}

std::vector<BlockOp> hybrid_block(const ConfigView& c, const DecoderSizes& s, bool attention) {
  std::vector<BlockOp> ops = granite_block(c, s);  // its first half is the layer of attention
  ops.resize(6);
  if (attention && c.str("position_embedding_type", "nope") != "rope") ops = without_rope(ops);
  if (!attention) {
    ops.resize(1);
    const std::vector<BlockOp> mixer = mamba2(c, s, "mamba.",
                                              {.heads = static_cast<int>(size_key(c, "mamba_n_heads")),
                                               .groups = static_cast<int>(size_key(c, "mamba_n_groups", 1)),
                                               .groups_key = "mamba_n_groups",
                                               .head_dim = size_key(c, "mamba_d_head"),
                                               .state = size_key(c, "mamba_d_state"),
                                               .taps = size_key(c, "mamba_d_conv", 4),
                                               .bias = c.flag("mamba_proj_bias", false),
                                               .conv_bias = c.flag("mamba_conv_bias", true)});
    ops.insert(ops.end(), mixer.begin(), mixer.end());
    ops.push_back(AddTo{S::h, S::x});
  }
  const std::vector<BlockOp> mlp = shared_mlp(c, s);
  ops.insert(ops.end(), mlp.begin(), mlp.end());
  put_granite_multipliers(c, ops);
  return ops;
}

ModelSpec arch_granite_hybrid(const ConfigView& c) {
  const DecoderSizes s = decoder_sizes(c);
  // The latter two as transformers 5 writes them.
  const std::vector<std::string> types =
      layer_types(c, s, {"mamba", "attention", "linear_attention", "full_attention"});
  const auto attends = [](const std::string& type) { return type == "attention" || type == "full_attention"; };
  std::vector<int> attention;
  for (int64_t i = 0; i < s.layers; ++i)
    attention.push_back(types.empty() ? 0 : attends(types[static_cast<size_t>(i)]));
  std::vector<std::vector<BlockOp>> variants(2);
  for (const int used : attention) {
    std::vector<BlockOp>& block = variants[static_cast<size_t>(used)];
    if (block.empty()) block = hybrid_block(c, s, used == 1);
  }
  const std::vector<int64_t> windows(static_cast<size_t>(s.layers), 0);
  return with_granite_multipliers(c, decoder_spec(c, s, variants, attention, windows));
}

}  // namespace

const Family family_granite_hybrid = {
    .classes = {{"GraniteMoeHybridForCausalLM"}},
    .model_types = {"granitemoehybrid"},
    .build = &arch_granite_hybrid,
    .gguf = {.arch = "granitehybrid",
             .names = {{"shared_mlp.output_linear", "ffn_down_shexp"}},
             .has_experts = true,
             .dense_too = true,
             .experts = {.width = "intermediate_size", .shared_width = "shared_intermediate_size"},
             .recurrent = {.kind = GgufRecurrent::Kind::state_space,
                           .word = "mamba",
                           .attention_word = "attention",
                           .twice_hidden = true,
                           .heads = "mamba_n_heads",
                           .head_dim = "mamba_d_head",
                           .groups = "mamba_n_groups",
                           .state = "mamba_d_state",
                           .taps = "mamba_d_conv"},
             .multipliers = kGraniteMultipliers,
             .pairs = true,
             .still_switch = true,
             .mlp_width = "shared_intermediate_size",
             .presence = {{"mamba_conv_bias", "blk.*.ssm_conv1d.bias"}}},
};

}  // namespace fewbit
