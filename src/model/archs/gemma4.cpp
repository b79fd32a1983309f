// Gemma 4 (text), dense and with experts: Gemma 3's places of norms, whose weights are plain again, heads of another
// size in the layers that see everything, values normed without a weight, and a factor on the states behind every
// layer. E2B and E4B give every layer something of the token alone, and their last layers read the keys and values of
// the last one of their kind that makes some. Keys: configuration_gemma4.py of Hugging Face transformers.
#include <fmt/format.h>

#include <cmath>
#include <compare>
#include <map>

#include "src/model/archs/decoder.h"

namespace fewbit {
namespace {

using S = Slot;
constexpr auto kRms = NormKind::rms;

Norm norm(const DecoderSizes& s, S in, S out, const char* name) { return {in, out, kRms, name, s.hidden, s.eps}; }

// Which keys and values a layer reads, and which it leaves for later ones.
struct Role {
  bool sliding = false;
  int64_t keys_of_layer = -1;  // -1: its own
  bool leaves_keys = false;
  bool wide = false;                           // twice the width of an MLP
  bool keeps_near = false, keeps_far = false;  // later layers read them
  auto operator<=>(const Role&) const = default;
};

std::vector<BlockOp> attention(const ConfigView& c, const DecoderSizes& s, const Role& role, bool values) {
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
  std::vector<BlockOp> ops = {norm(s, S::x, S::h, "input_layernorm"), qkv};
  if (own && !values) ops.push_back(Split{k, {{v, kv}}});  // values are the keys, before their norm
  ops.push_back(HeadNorm{S::q, kRms, "self_attn.q_norm", s.head_dim, s.eps});
  if (own) {
    ops.push_back(HeadNorm{k, kRms, "self_attn.k_norm", s.head_dim, s.eps});
    ops.push_back(HeadNorm{v, kRms, "", s.head_dim, s.eps});
  }
  ops.push_back(Rope{own ? std::vector<Slot>{S::q, k} : std::vector<Slot>{S::q}, s.head_dim, rope});
  ops.push_back(attend);
  ops.push_back(Linears{S::attn, {{"self_attn.o_proj", S::h, s.hidden, q, bias}}});
  ops.push_back(norm(s, S::h, S::h, "post_attention_layernorm"));
  ops.push_back(AddTo{S::h, S::x});
  return ops;
}

std::vector<BlockOp> mlp(const DecoderSizes& s, S out, bool wide = false) {
  std::vector<BlockOp> ops = gated_mlp("mlp.", s.hidden, s.intermediate * (wide ? 2 : 1), out);
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

// What the token alone adds to the states of a layer, behind a gate that reads them.
std::vector<BlockOp> token_input(const DecoderSizes& s, int64_t features, const std::string& prefix) {
  return {
      TokenInput{S::token, prefix + "embed_tokens_per_layer.weight", prefix + "per_layer_model_projection.weight",
                 prefix + "per_layer_projection_norm.weight", s.layers, features, s.eps},
      Project{S::x, S::share, "per_layer_input_gate", features, s.hidden},
      GatedAct{S::share, S::token, S::share, Activation::gelu_tanh},
      Project{S::share, S::h, "per_layer_projection", s.hidden, features},
      norm(s, S::h, S::h, "post_per_layer_input_norm"),
      AddTo{S::h, S::x},
  };
}

// The role of every layer: the last `num_kv_shared_layers` read keys and values of the last one before them that has a
// window as they do, or none.
std::vector<Role> roles_of(const ConfigView& c, const DecoderSizes& s, const std::vector<int64_t>& windows) {
  const int64_t shared = c.i64("num_kv_shared_layers", 0), first = s.layers - shared;
  if (shared < 0 || shared >= s.layers)
    fail(ErrorKind::checkpoint,
         fmt::format("{}: num_kv_shared_layers: expected 0 to {}, found {}", c.where(), s.layers - 1, shared));
  std::vector<Role> roles(static_cast<size_t>(s.layers));
  const auto role = [&](int64_t i) -> Role& { return roles[static_cast<size_t>(i)]; };
  for (int64_t i = 0; i < s.layers; ++i) role(i).sliding = windows[static_cast<size_t>(i)] > 0;
  for (int64_t i = first; i < s.layers; ++i) {
    int64_t from = first - 1;
    while (from >= 0 && role(from).sliding != role(i).sliding) --from;
    if (from < 0)
      fail(ErrorKind::checkpoint,
           fmt::format("{}: num_kv_shared_layers: no layer before {} makes keys for layer {}", c.where(), first, i));
    role(i).keys_of_layer = from;
    role(i).wide = c.flag("use_double_wide_mlp", false);
    role(from).leaves_keys = true;
    for (int64_t between = from; between < i; ++between)
      (role(i).sliding ? role(between).keeps_near : role(between).keeps_far) = true;
  }
  return roles;
}

Keep kept_of(const Role& role, const DecoderSizes& near, const DecoderSizes& far) {
  Keep keep;
  const auto add = [&](const DecoderSizes& s, S k, S v) {
    keep.slots.insert(keep.slots.end(), {k, v});
    keep.features.insert(keep.features.end(), 2, s.kv_heads * s.head_dim);
  };
  if (role.keeps_near) add(near, S::near_k, S::near_v);
  if (role.keeps_far) add(far, S::far_k, S::far_v);
  return keep;
}

void refuse_what_is_missing(const ConfigView& c, const DecoderSizes& s) {
  c.must_equal("hidden_activation", "gelu_pytorch_tanh");
  c.must_equal("use_bidirectional_attention", "vision");  // which means pictures, not text
  if (c.i64("vocab_size_per_layer_input", s.vocab) != s.vocab)
    fail(ErrorKind::unsupported,
         fmt::format("{}: vocab_size_per_layer_input: found {}; only vocab_size ({}) is supported", c.where(),
                     c.i64("vocab_size_per_layer_input"), s.vocab));
}

ModelSpec arch_gemma4(const ConfigView& c) {
  DecoderSizes s = decoder_sizes(c);
  refuse_what_is_missing(c, s);
  s.head_dim = size_key(c, "head_dim", 256);
  DecoderSizes wide = s;  // of the layers that see everything
  const bool no_values = c.flag("attention_k_eq_v", false);
  wide.head_dim = size_key(c, "global_head_dim", s.head_dim);
  if (no_values) wide.kv_heads = static_cast<int>(size_key(c, "num_global_key_value_heads", s.kv_heads));
  const bool inside = c.architecture().ends_with("ForConditionalGeneration");
  const std::string prefix = inside ? "model.language_model." : "model.";
  const int64_t token_features = c.i64("hidden_size_per_layer_input", 0);
  const std::vector<int64_t> windows = layer_windows(c, s, size_key(c, "sliding_window", 512), s.layers);
  std::map<Role, int> known;
  std::vector<std::vector<BlockOp>> variants;
  std::vector<int> variant_of_layer;
  for (const Role& role : roles_of(c, s, windows)) {
    const auto [at, fresh] = known.try_emplace(role, static_cast<int>(variants.size()));
    variant_of_layer.push_back(at->second);
    if (!fresh) continue;
    std::vector<BlockOp> ops = attention(c, role.sliding ? s : wide, role, role.sliding || !no_values);
    const auto append = [&ops](const std::vector<BlockOp>& more) { ops.insert(ops.end(), more.begin(), more.end()); };
    append(c.flag("enable_moe_block", false) ? mlp_and_experts(c, s) : mlp(s, S::h, role.wide));
    append({norm(s, S::h, S::h, "post_feedforward_layernorm"), AddTo{S::h, S::x}});
    if (token_features > 0) append(token_input(s, token_features, prefix));
    ops.push_back(Scale{S::x, "layer_scalar"});
    if (const Keep keep = kept_of(role, s, wide); !keep.slots.empty()) ops.push_back(keep);
    variants.push_back(std::move(ops));
  }
  ModelSpec spec = decoder_spec(c, s, variants, variant_of_layer, windows);
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
    .gguf = {.arch = "gemma4",
             .read_as = "Gemma4ForCausalLM",
             .names = {{"post_attention_layernorm", "post_attention_norm"},
                       {"post_feedforward_layernorm_1", "post_ffw_norm_1"},
                       {"pre_feedforward_layernorm_2", "pre_ffw_norm_2"},
                       {"post_feedforward_layernorm_2", "post_ffw_norm_2"},
                       {"router.scale", "ffn_gate_inp.scale"},
                       {"router.per_expert_scale", "ffn_down_exps.scale"},
                       {"layer_scalar", "layer_output_scale.weight"},
                       {"per_layer_input_gate", "inp_gate"},
                       {"per_layer_projection", "proj"},
                       {"post_per_layer_input_norm", "post_norm"}},
             .has_experts = true,
             .dense_too = true,
             .experts = {.beside_mlp = true,
                         .width_key = true,
                         .count = "num_experts",
                         .used = "top_k_experts",
                         .width = "moe_intermediate_size"},
             .divisors = true,
             .window_period = GgufFamily::kListed,
             .sliding_rotation = true,
             .sliding_heads = true,
             .logit_cap_key = true,
             .undivided = true,
             .activation_key = "hidden_activation",
             .activation = "gelu_pytorch_tanh"},
};

}  // namespace fewbit
