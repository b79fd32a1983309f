// Gemma 4 (text), dense and with experts: Gemma 3's places of norms, whose weights are plain again, heads of another
// size in the layers that see everything, values normed without a weight, and a factor on the states behind every
// layer. Keys: configuration_gemma4.py of Hugging Face transformers. Not read yet: per-layer embeddings and shared keys
// (E2B, E4B).
#include <fmt/format.h>

#include <cmath>

#include "src/model/archs/decoder.h"

namespace fewbit {
namespace {

using S = Slot;
constexpr auto kRms = NormKind::rms;

Norm norm(const DecoderSizes& s, S in, S out, const char* name) { return {in, out, kRms, name, s.hidden, s.eps}; }

std::vector<BlockOp> attention(const ConfigView& c, const DecoderSizes& s, const RopeParams& rope, bool values) {
  const int64_t q = s.heads * s.head_dim, kv = s.kv_heads * s.head_dim;
  const bool bias = c.flag("attention_bias", false);
  Linears qkv{S::h, {{"self_attn.q_proj", S::q, q, s.hidden, bias}, {"self_attn.k_proj", S::k, kv, s.hidden, bias}}};
  std::vector<BlockOp> ops = {norm(s, S::x, S::h, "input_layernorm")};
  if (values) qkv.items.push_back({"self_attn.v_proj", S::v, kv, s.hidden, bias});
  ops.push_back(qkv);
  if (!values) ops.push_back(Split{S::k, {{S::v, kv}}});  // values are the keys, before their norm
  Attention attend = decoder_attention(s);
  attend.scale = 1;
  const std::vector<BlockOp> rest = {
      HeadNorm{S::q, kRms, "self_attn.q_norm", s.head_dim, s.eps},
      HeadNorm{S::k, kRms, "self_attn.k_norm", s.head_dim, s.eps},
      HeadNorm{S::v, kRms, "", s.head_dim, s.eps},
      Rope{{S::q, S::k}, s.head_dim, rope},
      attend,
      Linears{S::attn, {{"self_attn.o_proj", S::h, s.hidden, q, bias}}},
      norm(s, S::h, S::h, "post_attention_layernorm"),
      AddTo{S::h, S::x},
  };
  ops.insert(ops.end(), rest.begin(), rest.end());
  return ops;
}

std::vector<BlockOp> mlp(const DecoderSizes& s, S out) {
  std::vector<BlockOp> ops = gated_mlp("mlp.", s.hidden, s.intermediate, out);
  std::get<GatedAct>(ops[1]).act = Activation::gelu_tanh;
  ops.insert(ops.begin(), norm(s, S::x, S::h, "pre_feedforward_layernorm"));
  return ops;
}

// The sum of an MLP and of experts, each behind a norm of its own; the router reads the states themselves.
std::vector<BlockOp> mlp_and_experts(const ConfigView& c, const DecoderSizes& s) {
  const int64_t width = size_key(c, "moe_intermediate_size"), experts = size_key(c, "num_experts"),
                top_k = size_key(c, "top_k_experts");
  if (top_k > experts)
    fail(ErrorKind::checkpoint,
         fmt::format("{}: top_k_experts: expected at most num_experts ({}), found {}", c.where(), experts, top_k));
  Moe moe{.in = S::h,
          .out = S::h,
          .router = "router.proj",
          .hidden = s.hidden,
          .experts = static_cast<int>(experts),
          .top_k = static_cast<int>(top_k),
          .renormalise = true,
          .expert_name = "experts.",
          .gate = {"gate_proj", S::gate, width, s.hidden},
          .up = {"up_proj", S::up, width, s.hidden},
          .down = {"down_proj", S::h, s.hidden, width},
          .act = Activation::gelu_tanh,
          .stacked_gate_up = "experts.gate_up_proj",
          .stacked_down = "experts.down_proj"};
  moe.router_in = S::route;
  moe.logit_scale = 1 / std::sqrt(static_cast<float>(s.hidden));
  moe.expert_scale = "router.per_expert_scale";
  Norm routed = norm(s, S::x, S::route, "router.scale");
  routed.bare = true;
  std::vector<BlockOp> ops = mlp(s, S::shared);
  const std::vector<BlockOp> rest = {
      norm(s, S::shared, S::shared, "post_feedforward_layernorm_1"),
      norm(s, S::x, S::h, "pre_feedforward_layernorm_2"),
      routed,
      moe,
      norm(s, S::h, S::h, "post_feedforward_layernorm_2"),
      AddTo{S::shared, S::h},
  };
  ops.insert(ops.end(), rest.begin(), rest.end());
  return ops;
}

void refuse_what_is_missing(const ConfigView& c) {
  c.must_equal("hidden_activation", "gelu_pytorch_tanh");
  c.must_equal("use_bidirectional_attention", "vision");  // which means pictures, not text
  for (const char* key : {"hidden_size_per_layer_input", "num_kv_shared_layers"})
    if (c.i64(key, 0) != 0)
      fail(ErrorKind::unsupported, fmt::format("{}: {}: found {}; only 0 is supported", c.where(), key, c.i64(key)));
}

ModelSpec arch_gemma4(const ConfigView& c) {
  refuse_what_is_missing(c);
  DecoderSizes s = decoder_sizes(c);
  s.head_dim = size_key(c, "head_dim", 256);
  DecoderSizes wide = s;  // of the layers that see everything
  const bool no_values = c.flag("attention_k_eq_v", false);
  wide.head_dim = size_key(c, "global_head_dim", s.head_dim);
  if (no_values) wide.kv_heads = static_cast<int>(size_key(c, "num_global_key_value_heads", s.kv_heads));
  std::vector<std::vector<BlockOp>> variants = {attention(c, wide, c.rope(wide.head_dim, "full_attention"), !no_values),
                                                attention(c, s, c.rope(s.head_dim, "sliding_attention"), true)};
  for (std::vector<BlockOp>& ops : variants) {
    const std::vector<BlockOp> ffn = c.flag("enable_moe_block", false) ? mlp_and_experts(c, s) : mlp(s, S::h);
    ops.insert(ops.end(), ffn.begin(), ffn.end());
    ops.push_back(norm(s, S::h, S::h, "post_feedforward_layernorm"));
    ops.push_back(AddTo{S::h, S::x});
    ops.push_back(Scale{S::x, "layer_scalar"});
  }
  const std::vector<int64_t> windows = layer_windows(c, s, size_key(c, "sliding_window", 512), s.layers);
  std::vector<int> sliding;
  for (const int64_t w : windows) sliding.push_back(w > 0);
  ModelSpec spec = decoder_spec(c, s, variants, sliding, windows);
  spec.embed_scale = std::sqrt(static_cast<float>(spec.hidden));
  spec.logit_softcap = static_cast<float>(c.f64("final_logit_softcapping", 0));
  if (c.flag("tie_word_embeddings", true)) spec.lm_head = spec.embed;
  return spec;
}

}  // namespace

const Family family_gemma4 = {
    .classes = {{"Gemma4ForConditionalGeneration", "model.language_model."}, {"Gemma4ForCausalLM"}},
    .model_types = {"gemma4", "gemma4_text"},
    .build = &arch_gemma4,
    .keeps = {{"model.vision_tower.*", kVisionTower, true}, {"model.embed_vision.*", kProjector, true}},
    .chat = "gemma",
    .gguf = {.why_not = "its heads of two sizes and its mixture beside an MLP are not written yet"},
};

}  // namespace fewbit
