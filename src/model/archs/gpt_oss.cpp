// gpt-oss: Llama's block with biases, a sink beside the scores of every head, windows on every other layer, and experts
// with biases, whose gate and up lie by turns in one stack and meet in a clamped SwiGLU. Keys: configuration_gpt_oss.py
// of Hugging Face transformers.
#include <fmt/format.h>

#include "src/model/archs/decoder.h"

namespace fewbit {
namespace {

ModelSpec arch_gpt_oss(const ConfigView& c) {
  const DecoderSizes s = decoder_sizes(c);
  const bool bias = c.flag("attention_bias", true);
  const double limit = c.f64("swiglu_limit", 7);
  if (!(limit > 0))
    fail(ErrorKind::checkpoint, fmt::format("{}: swiglu_limit: expected a number above 0, found {}", c.where(), limit));
  std::vector<BlockOp> block =
      moe_block(c, decoder_block(c, s, {.qkv = bias, .o = bias}),
                {"mlp.router", "mlp.experts.", "gate_proj", "up_proj", "down_proj"}, s.intermediate, true);
  for (BlockOp& op : block) {
    if (Attention* a = std::get_if<Attention>(&op)) a->sinks = "self_attn.sinks";
    if (Moe* m = std::get_if<Moe>(&op)) {
      for (LinearDef* l : {&m->gate, &m->up, &m->down}) l->bias = true;
      m->router_bias = true;
      m->swiglu_limit = static_cast<float>(limit);
      m->stacked_gate_up = "mlp.experts.gate_up_proj", m->stacked_down = "mlp.experts.down_proj";
      m->stacks = Moe::Stacks::turned_by_turns;
    }
  }
  const int64_t window = size_key(c, "sliding_window", 128);
  std::vector<int64_t> windows = layer_windows(c, s, window, 0);
  if (c.str_list("layer_types").empty())
    for (int64_t i = 1; i < s.layers; i += 2) windows[static_cast<size_t>(i)] = 0;
  return decoder_spec(c, s, block, windows);
}

}  // namespace

const Family family_gpt_oss = {
    .classes = {{"GptOssForCausalLM"}},
    .model_types = {"gpt_oss"},
    .build = &arch_gpt_oss,
    .gguf = {.arch = "gpt-oss",
             .names = {{"post_attention_layernorm", "post_attention_norm"}},
             .has_experts = true,
             .experts = {.width_key = true, .swiglu_limit = 7},
             .output_biases = true,
             .untruncated_yarn = true,
             .window_period = 2,
             .tied = false},
};

}  // namespace fewbit
