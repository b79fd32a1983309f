// Granite 3 and 4 (IBM): Llama's block with four multipliers, of the embedding, of attention's scores, of what each
// branch adds to the states, and of the logits; with experts or without. The hybrids have a state space of Mamba-2 in
// place of attention in most layers, and an MLP beside the experts. Keys and defaults: configuration_granite.py,
// configuration_granitemoe.py and configuration_granitemoehybrid.py of Hugging Face transformers.
#include <fmt/format.h>

#include "src/model/archs/mamba2.h"

namespace fewbit {
namespace {

float multiplier(const ConfigView& c, const std::string& key) {
  const double m = c.f64(key, 1);
  if (!(m > 0))
    fail(ErrorKind::checkpoint, fmt::format("{}: {}: expected a number above 0, found {}", c.where(), key, m));
  return static_cast<float>(m);
}

using S = Slot;

// The multipliers of a block, and where the stacks of its experts are.
void finish_block(const ConfigView& c, std::vector<BlockOp>& block) {
  for (BlockOp& op : block) {
    if (auto* a = std::get_if<Attention>(&op)) a->scale = multiplier(c, "attention_multiplier");
    if (auto* add = std::get_if<AddTo>(&op); add && add->out == S::x)
      add->factor = multiplier(c, "residual_multiplier");
    if (auto* m = std::get_if<Moe>(&op)) {
      m->stacked_gate_up = "block_sparse_moe.input_linear.weight";
      m->stacked_down = "block_sparse_moe.output_linear.weight";
    }
  }
}

std::vector<BlockOp> with_experts(const ConfigView& c, const DecoderSizes& s, const std::vector<BlockOp>& dense) {
  return moe_block(c, dense, {"block_sparse_moe.router.layer", "block_sparse_moe.experts.", "w1", "w3", "w2"},
                   s.intermediate, true);
}

ModelSpec with_multipliers(const ConfigView& c, ModelSpec spec) {
  spec.embed_scale = multiplier(c, "embedding_multiplier");
  spec.logit_scale = 1 / multiplier(c, "logits_scaling");
  return spec;
}

std::vector<BlockOp> plain_block(const ConfigView& c, const DecoderSizes& s) {
  const bool attention = c.flag("attention_bias", false);
  return decoder_block(c, s, {.qkv = attention, .o = attention, .mlp = c.flag("mlp_bias", false)});
}

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
    for (const BlockOp& op : with_experts(c, s, plain_block(c, s)))
      if (std::holds_alternative<Moe>(op)) ops.push_back(op);  // last, for it writes where all of them read
    ops.push_back(AddTo{S::shared, S::h});
  }
  ops.push_back(AddTo{S::h, S::x});
  return ops;
}

std::vector<BlockOp> hybrid_block(const ConfigView& c, const DecoderSizes& s, bool attention) {
  std::vector<BlockOp> ops = plain_block(c, s);  // its first half is the layer of attention
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
  finish_block(c, ops);
  return ops;
}

ModelSpec arch_granite(const ConfigView& c) {
  const DecoderSizes s = decoder_sizes(c);
  std::vector<BlockOp> block = plain_block(c, s);
  if (c.architecture() == "GraniteMoeForCausalLM") block = with_experts(c, s, block);
  finish_block(c, block);
  return with_multipliers(c, decoder_spec(c, s, block, std::vector<int64_t>(static_cast<size_t>(s.layers), 0)));
}

ModelSpec arch_granite_hybrid(const ConfigView& c) {
  const DecoderSizes s = decoder_sizes(c);
  const std::vector<std::string> types = layer_types(c, s, {"mamba", "attention"});
  std::vector<int> attention;
  for (int64_t i = 0; i < s.layers; ++i)
    attention.push_back(types.empty() ? 0 : types[static_cast<size_t>(i)] == "attention");
  std::vector<std::vector<BlockOp>> variants(2);
  for (const int used : attention) {
    std::vector<BlockOp>& block = variants[static_cast<size_t>(used)];
    if (block.empty()) block = hybrid_block(c, s, used == 1);
  }
  const std::vector<int64_t> windows(static_cast<size_t>(s.layers), 0);
  return with_multipliers(c, decoder_spec(c, s, variants, attention, windows));
}

constexpr GgufMultipliers kMultipliers{.embedding = "embedding_multiplier",
                                       .residual = "residual_multiplier",
                                       .scores = "attention_multiplier",
                                       .logits = "logits_scaling",
                                       .logits_divided = true};

}  // namespace

const Family family_granite = {
    .classes = {{"GraniteForCausalLM"}},
    .model_types = {"granite"},
    .build = &arch_granite,
    .gguf = {.arch = "granite", .multipliers = kMultipliers, .pairs = true, .output_biases = true},
};

const Family family_granite_moe = {
    .classes = {{"GraniteMoeForCausalLM"}},
    .model_types = {"granitemoe"},
    .build = &arch_granite,
    .gguf = {.arch = "granitemoe", .has_experts = true, .multipliers = kMultipliers, .pairs = true},
};

const Family family_granite_hybrid = {
    .classes = {{"GraniteMoeHybridForCausalLM"}},
    .model_types = {"granitemoehybrid"},
    .build = &arch_granite_hybrid,
    .gguf = {.arch = "granitehybrid",
             .names = {{"mamba.in_proj", "ssm_in"},
                       {"mamba.conv1d", "ssm_conv1d"},
                       {"mamba.A_log", "ssm_a"},
                       {"mamba.dt_bias", "ssm_dt.bias"},
                       {"mamba.D", "ssm_d"},
                       {"mamba.norm.weight", "ssm_norm.weight"},
                       {"mamba.out_proj", "ssm_out"},
                       {"shared_mlp.output_linear", "ffn_down_shexp"}},
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
             .multipliers = kMultipliers,
             .pairs = true,
             .still_switch = true,
             .mlp_width = "shared_intermediate_size",
             .presence = {{"mamba_conv_bias", "blk.*.ssm_conv1d.bias"}}},
};

}  // namespace fewbit
