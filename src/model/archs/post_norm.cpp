// OLMo 2, OLMo 3 and EXAONE 4: Llama's block with its norms behind attention and the MLP instead of in front of them,
// and norms of q and k (OLMo over all heads at once, EXAONE for each). In OLMo 3 only layers that see everything have
// the config's rope scaling; in EXAONE 4 they do not turn at all, where other layers have a window.
#include "src/model/archs/decoder.h"

namespace fewbit {
namespace {

using S = Slot;

std::vector<BlockOp> post_norm_block(const ConfigView& c, const DecoderSizes& s, bool bias, const RopeParams& rope) {
  std::vector<BlockOp> block;
  for (BlockOp& op : decoder_block(c, s, {.qkv = bias, .o = bias})) {
    if (std::holds_alternative<Norm>(op)) continue;
    if (auto* linears = std::get_if<Linears>(&op); linears && linears->in == S::h) linears->in = S::x;
    if (auto* turn = std::get_if<Rope>(&op)) turn->params = rope;
    if (std::holds_alternative<AddTo>(op)) {
      const bool first = block.size() < 6;
      block.push_back(Norm{S::h, S::h, NormKind::rms, first ? "post_attention_layernorm" : "post_feedforward_layernorm",
                           s.hidden, s.eps});
    }
    block.push_back(std::move(op));
  }
  return block;
}

ModelSpec olmo_spec(const ConfigView& c, const DecoderSizes& s, const std::vector<int64_t>& windows) {
  const bool bias = c.flag("attention_bias", false);
  std::vector<std::vector<BlockOp>> variants;  // sees everything, has a window
  for (const RopeParams& rope : {c.rope(s.head_dim), c.unscaled_rope(s.head_dim)}) {
    variants.push_back(post_norm_block(c, s, bias, rope));
    add_whole_norms(variants.back(), s);
  }
  std::vector<int> windowed;
  for (const int64_t w : windows) windowed.push_back(w > 0);
  return decoder_spec(c, s, variants, windowed, windows);
}

ModelSpec arch_olmo2(const ConfigView& c) {
  const DecoderSizes s = decoder_sizes(c);
  return olmo_spec(c, s, {});
}

ModelSpec arch_olmo3(const ConfigView& c) {
  const DecoderSizes s = decoder_sizes(c);
  std::vector<int64_t> windows = layer_windows(c, s, size_key(c, "sliding_window", 4096), 0);
  if (c.str_list("layer_types").empty())
    for (int64_t i = 3; i < s.layers; i += 4) windows[static_cast<size_t>(i)] = 0;
  return olmo_spec(c, s, windows);
}

ModelSpec arch_exaone4(const ConfigView& c) {
  const DecoderSizes s = decoder_sizes(c);
  const int64_t window = c.has("sliding_window") ? size_key(c, "sliding_window") : 0;
  if (window > 0 && !c.has("layer_types"))
    fail(ErrorKind::unsupported, c.where() + ": sliding_window: needs layer_types, which say where it holds");
  const std::vector<int64_t> windows = layer_windows(c, s, window, s.layers);
  std::vector<BlockOp> turns = post_norm_block(c, s, c.flag("attention_bias", false), c.rope(s.head_dim));
  add_head_norms(turns, s);
  std::vector<int> still;
  for (const int64_t w : windows) still.push_back(window > 0 && w == 0);
  return decoder_spec(c, s, {turns, without_rope(turns)}, still, windows);
}

}  // namespace

const Family family_olmo2 = {
    .classes = {{"Olmo2ForCausalLM"}},
    .model_types = {"olmo2"},
    .build = &arch_olmo2,
    .gguf = {.arch = "olmo2",
             .names = {{"post_attention_layernorm", "post_attention_norm"}},
             .square = true,
             .tied = false},
};

const Family family_olmo3 = {
    .classes = {{"Olmo3ForCausalLM"}},
    .model_types = {"olmo3"},
    .build = &arch_olmo3,
    .gguf = {.arch = "olmo2",
             .names = {{"post_attention_layernorm", "post_attention_norm"}},
             .square = true,
             .window_period = 4,
             .windows_tell = true,
             .tied = false},
};

const Family family_exaone4 = {
    .classes = {{"Exaone4ForCausalLM"}},
    .model_types = {"exaone4"},
    .build = &arch_exaone4,
    .gguf = {.arch = "exaone4",
             .names = {{"post_attention_layernorm", "post_attention_norm"}},
             .square = true,
             .divisors = true,
             .full_layers_still = true,
             .window_period = 4,
             .window = 4096,
             .window_layers = 64},
};

}  // namespace fewbit
