// The op lists of Gemma 4's layers. Keys: configuration_gemma4.py of Hugging Face transformers.
#include "src/model/archs/gemma4.h"

#include <fmt/format.h>

#include <cmath>

namespace fewbit {
namespace {

using S = Slot;
constexpr auto kRms = NormKind::rms;

}  // namespace

Norm gemma4_norm(const DecoderSizes& s, S in, S out, const char* name) {
  return {in, out, kRms, name, s.hidden, s.eps};
}

std::vector<BlockOp> gemma4_attention(const ConfigView& c, const DecoderSizes& s, const Gemma4Role& role, bool values) {
  const RopeParams rope = c.rope(s.head_dim, role.sliding ? "sliding_attention" : "full_attention");
  const int64_t q = s.heads * s.head_dim, kv = s.kv_heads * s.head_dim;
  const bool bias = c.flag("attention_bias", false), own = role.keys_of_layer < 0;
  Attention attend = decoder_attention(s);
  attend.scale = 1;
  attend.keys_of_layer = role.keys_of_layer;
  if (!own || role.leaves_keys)
    attend.k = role.sliding ? S::near_k : S::far_k, attend.v = role.sliding ? S::near_v : S::far_v;
  const S k = attend.k, v = attend.v;
  Linears qkv{S::h, {{"self_attn.q_proj", S::q, q, s.hidden, bias}}};
  if (own) qkv.items.push_back({"self_attn.k_proj", k, kv, s.hidden, bias});
  if (own && values) qkv.items.push_back({"self_attn.v_proj", v, kv, s.hidden, bias});
  std::vector<BlockOp> ops = {gemma4_norm(s, S::x, S::h, "input_layernorm"), qkv};
  if (own && !values) ops.push_back(Split{k, {{v, kv}}});  // values are the keys, before their norm
  ops.push_back(HeadNorm{S::q, kRms, "self_attn.q_norm", s.head_dim, s.eps});
  if (own) {
    ops.push_back(HeadNorm{k, kRms, "self_attn.k_norm", s.head_dim, s.eps});
    ops.push_back(HeadNorm{v, kRms, "", s.head_dim, s.eps});
  }
  ops.push_back(Rope{own ? std::vector<Slot>{S::q, k} : std::vector<Slot>{S::q}, s.head_dim, rope});
  ops.push_back(attend);
  ops.push_back(Linears{S::attn, {{"self_attn.o_proj", S::h, s.hidden, q, bias}}});
  ops.push_back(gemma4_norm(s, S::h, S::h, "post_attention_layernorm"));
  ops.push_back(AddTo{S::h, S::x});
  return ops;
}

std::vector<BlockOp> gemma4_mlp(const DecoderSizes& s, S out, bool wide) {
  std::vector<BlockOp> ops = gated_mlp("mlp.", s.hidden, s.intermediate * (wide ? 2 : 1), out);
  std::get<GatedAct>(ops[1]).act = Activation::gelu_tanh;
  ops.insert(ops.begin(), gemma4_norm(s, S::x, S::h, "pre_feedforward_layernorm"));
  return ops;
}

std::vector<BlockOp> gemma4_mlp_and_experts(const ConfigView& c, const DecoderSizes& s) {
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
  Norm routed = gemma4_norm(s, S::x, S::route, "router.scale");
  routed.bare = true;
  std::vector<BlockOp> ops = gemma4_mlp(s, S::shared);
  const std::vector<BlockOp> rest = {
      gemma4_norm(s, S::shared, S::shared, "post_feedforward_layernorm_1"),
      gemma4_norm(s, S::x, S::h, "pre_feedforward_layernorm_2"),
      routed,
      moe,
      gemma4_norm(s, S::h, S::h, "post_feedforward_layernorm_2"),
      AddTo{S::shared, S::h},
  };
  ops.insert(ops.end(), rest.begin(), rest.end());
  return ops;
}

std::vector<BlockOp> gemma4_token_input(const DecoderSizes& s, int64_t features) {
  return {
      TokenInput{S::token, "model.embed_tokens_per_layer.weight", "model.per_layer_model_projection.weight",
                 "model.per_layer_projection_norm.weight", s.layers, features, s.eps},
      Project{S::x, S::share, "per_layer_input_gate", features, s.hidden},
      GatedAct{S::share, S::token, S::share, Activation::gelu_tanh},
      Project{S::share, S::h, "per_layer_projection", s.hidden, features},
      gemma4_norm(s, S::h, S::h, "post_per_layer_input_norm"),
      AddTo{S::h, S::x},
  };
}

}  // namespace fewbit
