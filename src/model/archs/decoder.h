#pragma once
// What the Llama family of decoders shares: sizes read from a config, the block they all have, and how layers
// get their attention windows.
#include "src/model/archs.h"

namespace fewbit {

struct DecoderSizes {
  int64_t hidden = 0, intermediate = 0, layers = 0, vocab = 0, positions = 0, head_dim = 0;
  int heads = 0, kv_heads = 0;
  float eps = 0;
  double partial = 1;  // share of a head that turns, where the config does not say
};
// Error{checkpoint} naming the key where a size is absent, not positive, or does not divide.
DecoderSizes decoder_sizes(const ConfigView&);

// Attention of q, k and v into `attn`, scores over sqrt(head_dim).
Attention decoder_attention(const DecoderSizes&);

// out = down(silu(gate) * up) of h, by the names `prefix`gate_proj, up_proj, down_proj.
std::vector<BlockOp> gated_mlp(const std::string& prefix, int64_t hidden, int64_t intermediate, Slot out);

// Why tensors stay as they are (FamilyKeep).
inline constexpr std::string_view kFirstDense =
    "of the first layers, which have no experts: few weights, whose errors every layer behind them gets";
inline constexpr std::string_view kNextTokens = "predicts further tokens: not part of the op list, travels as it is";
inline constexpr std::string_view kVisionTower = "of the vision tower: not part of the op list, travels as it is";
inline constexpr std::string_view kProjector =
    "between the tower and the model: not part of the op list, travels as it is";

struct DecoderBiases {
  bool qkv = false, o = false, mlp = false;
};
// x += o(attention(q, k, v of norm(x))); x += down(silu(gate) * up of norm(x)). The window is left at 0.
std::vector<BlockOp> decoder_block(const ConfigView&, const DecoderSizes&, const DecoderBiases&);

// Puts an RMS norm on every head of q and k, before the rotation.
void add_head_norms(std::vector<BlockOp>& block, const DecoderSizes&, NormKind kind = NormKind::rms);
// The same over all heads of q at once, and of k.
void add_whole_norms(std::vector<BlockOp>& block, const DecoderSizes&);
// The block without its rotation.
std::vector<BlockOp> without_rope(std::vector<BlockOp> block);
// Lets neighbours turn together in every rotation of the block.
void turn_neighbours(std::vector<BlockOp>& block);

// The names of a family's mixture of experts.
struct MoeNames {
  std::string router, experts, gate, up, down;
};
// The block with a mixture of experts of width `intermediate` in place of its MLP. Expert counts from the
// config: num_experts or num_local_experts, num_experts_per_tok.
std::vector<BlockOp> moe_block(const ConfigView&, const std::vector<BlockOp>& dense, const MoeNames&,
                               int64_t intermediate, bool renormalise);

// The mixture of a block that has one.
Moe& experts_of(std::vector<BlockOp>& block);
// What its router adds to the scores for the choice alone: the tensor `name` of the block.
void correct(Moe&, const std::string& name, const Shape&);

// Groups of experts by the config's keys `key` and topk_group, with the family's values where it does not say.
// Error{checkpoint} where they do not fit.
void group_experts(const ConfigView&, Moe&, const std::string& key, int64_t groups = 1, int64_t best = 1);

// Adds an expert of `width` that every token goes to, beside the Moe of the block; `gate` names the linear of one
// output whose logistic function weighs it ("": none does).
void add_shared_expert(std::vector<BlockOp>& block, const std::string& prefix, int64_t width, const std::string& gate);

// The spec around the blocks: ends, tokens, and one kind of block per variant and window in use. `variants`:
// the blocks of the architecture; `variant_of_layer` [layers] points into them (empty: all 0);
// `window_of_layer` [layers], 0 = full attention (empty: on all).
ModelSpec decoder_spec(const ConfigView&, const DecoderSizes&, const std::vector<std::vector<BlockOp>>& variants,
                       const std::vector<int>& variant_of_layer, const std::vector<int64_t>& window_of_layer = {});
// The same of one block.
ModelSpec decoder_spec(const ConfigView&, const DecoderSizes&, const std::vector<BlockOp>& block,
                       const std::vector<int64_t>& window_of_layer = {});

// `layer_types`, one of `known` for every layer; empty where the config has none. Error{checkpoint|unsupported} else.
std::vector<std::string> layer_types(const ConfigView&, const DecoderSizes&, const std::vector<std::string>& known);
// Windows by `layer_types` where the config has them, else `sliding_window` from layer `first_windowed` on.
std::vector<int64_t> layer_windows(const ConfigView&, const DecoderSizes&, int64_t window, int64_t first_windowed);
// A size of the config: at least 1 and below 2^31. Error{checkpoint} naming the key otherwise.
int64_t size_key(const ConfigView&, const std::string& key);
int64_t size_key(const ConfigView&, const std::string& key, int64_t fallback);
// Which layers turn queries and keys: those whose entry of `no_rope_layers` is not 0, else all but every
// no_rope_layer_interval-th.
std::vector<bool> turning_layers(const ConfigView&, const DecoderSizes&);
// The Mistral rule: sliding_window, where the config has it, on every layer.
std::vector<int64_t> mistral_windows(const ConfigView&, const DecoderSizes&);
// The Qwen rule: no window unless use_sliding_window, then from layer max_window_layers on.
std::vector<int64_t> qwen_windows(const ConfigView&, const DecoderSizes&);

}  // namespace fewbit
