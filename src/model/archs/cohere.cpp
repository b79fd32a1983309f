// Command R and R7B, Command A (Cohere): attention and the MLP read one layer norm and both add to the states,
// neighbours turn together, and the logits have a scale. Cohere 2 turns only the layers that have a window. Keys and
// defaults: configuration_cohere.py and configuration_cohere2.py of Hugging Face transformers.
#include <fmt/format.h>

#include "src/model/archs/decoder.h"

namespace fewbit {
namespace {

using S = Slot;

std::vector<BlockOp> parallel_block(const ConfigView& c, const DecoderSizes& s) {
  c.must_equal("hidden_act", "silu");
  const int64_t q = s.heads * s.head_dim, kv = s.kv_heads * s.head_dim;
  const bool bias = c.flag("attention_bias", false);
  return {
      Norm{S::x, S::h, NormKind::layer, "input_layernorm", s.hidden, s.eps},
      Linears{S::h,
              {{"self_attn.q_proj", S::q, q, s.hidden, bias},
               {"self_attn.k_proj", S::k, kv, s.hidden, bias},
               {"self_attn.v_proj", S::v, kv, s.hidden, bias}}},
      Rope{{S::q, S::k}, s.head_dim, c.rope(s.head_dim), true},
      decoder_attention(s),
      Linears{S::h,
              {{"mlp.gate_proj", S::gate, s.intermediate, s.hidden}, {"mlp.up_proj", S::up, s.intermediate, s.hidden}}},
      Linears{S::attn, {{"self_attn.o_proj", S::h, s.hidden, q, bias}}},  // nobody reads the norm any more
      AddTo{S::h, S::x},
      GatedAct{S::gate, S::up, S::act, Activation::silu},
      Linears{S::act, {{"mlp.down_proj", S::h, s.hidden, s.intermediate}}},
      AddTo{S::h, S::x},
  };
}

ModelSpec arch_cohere(const ConfigView& c) {
  DecoderSizes s = decoder_sizes(c);
  s.eps = static_cast<float>(c.f64("layer_norm_eps", 1e-5));
  const bool second = c.architecture() == "Cohere2ForCausalLM";
  c.must_be_false("use_qk_norm");
  std::vector<int64_t> windows(static_cast<size_t>(s.layers), 0);
  if (second) {
    const int64_t pattern = size_key(c, "sliding_window_pattern", 4);
    windows = layer_windows(c, s, size_key(c, "sliding_window", 4096), 0);
    if (c.str_list("layer_types").empty())
      for (int64_t i = pattern - 1; i < s.layers; i += pattern) windows[static_cast<size_t>(i)] = 0;
  }
  const std::vector<BlockOp> turns = parallel_block(c, s);
  std::vector<int> still;
  still.reserve(windows.size());
  for (const int64_t w : windows) still.push_back(second && w == 0);
  ModelSpec spec = decoder_spec(c, s, {turns, without_rope(turns)}, still, windows);
  spec.final_norm_kind = NormKind::layer;
  spec.logit_scale = static_cast<float>(c.f64("logit_scale", 0.0625));
  if (!(spec.logit_scale > 0))
    fail(ErrorKind::checkpoint,
         fmt::format("{}: logit_scale: expected a number above 0, found {}", c.where(), spec.logit_scale));
  if (c.flag("tie_word_embeddings", true)) spec.lm_head = spec.embed;
  return spec;
}

}  // namespace

const Family family_cohere = {
    .classes = {{"CohereForCausalLM"}},
    .model_types = {"cohere"},
    .build = &arch_cohere,
    .gguf = {.arch = "command-r",
             .multipliers = {.logits = "logit_scale"},
             .pairs = true,
             .square = true,
             .untied = false,
             .head_norms_from = 64,
             .layer_norms = true,
             .epsilon = "layer_norm_eps"},
};

const Family family_cohere2 = {
    .classes = {{"Cohere2ForCausalLM"}},
    .model_types = {"cohere2"},
    .build = &arch_cohere,
    .gguf = {.arch = "cohere2",
             .multipliers = {.logits = "logit_scale"},
             .pairs = true,
             .square = true,
             .full_layers_still = true,
             .window_period = 4,
             .window = 4096,
             .untied = false,
             .layer_norms = true,
             .epsilon = "layer_norm_eps"},
};

}  // namespace fewbit
