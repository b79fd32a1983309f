// Gemma 4 (text), dense and with experts: Gemma 3's places of norms, whose weights are plain again, heads of another
// size in the layers that see everything, values normed without a weight, and a factor on the states behind every
// layer. E2B and E4B give every layer something of the token alone, and their last layers read the keys and values of
// the last one of their kind that makes some. Keys: configuration_gemma4.py of Hugging Face transformers.
#include "src/model/archs/gemma4.h"

#include <fmt/format.h>

#include <cmath>
#include <map>

namespace fewbit {
namespace {

using S = Slot;

// The role of every layer: the last `num_kv_shared_layers` read keys and values of the last one before them that has a
// window as they do, or none.
std::vector<Gemma4Role> roles_of(const ConfigView& c, const DecoderSizes& s, const std::vector<int64_t>& windows) {
  const int64_t shared = c.i64("num_kv_shared_layers", 0), first = s.layers - shared;
  if (shared < 0 || shared >= s.layers)
    fail(ErrorKind::checkpoint,
         fmt::format("{}: num_kv_shared_layers: expected 0 to {}, found {}", c.where(), s.layers - 1, shared));
  std::vector<Gemma4Role> roles(static_cast<size_t>(s.layers));
  const auto role = [&](int64_t i) -> Gemma4Role& { return roles[static_cast<size_t>(i)]; };
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

Keep kept_of(const Gemma4Role& role, const DecoderSizes& near, const DecoderSizes& far) {
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
  const int64_t token_features = c.i64("hidden_size_per_layer_input", 0);
  const std::vector<int64_t> windows = layer_windows(c, s, size_key(c, "sliding_window", 512), s.layers);
  std::map<Gemma4Role, int> known;
  std::vector<std::vector<BlockOp>> variants;
  std::vector<int> variant_of_layer;
  for (const Gemma4Role& role : roles_of(c, s, windows)) {
    const auto [at, fresh] = known.try_emplace(role, static_cast<int>(variants.size()));
    variant_of_layer.push_back(at->second);
    if (!fresh) continue;
    std::vector<BlockOp> ops = gemma4_attention(c, role.sliding ? s : wide, role, role.sliding || !no_values);
    const auto append = [&ops](const std::vector<BlockOp>& more) { ops.insert(ops.end(), more.begin(), more.end()); };
    append(c.flag("enable_moe_block", false) ? gemma4_mlp_and_experts(c, s) : gemma4_mlp(s, S::h, role.wide));
    append({gemma4_norm(s, S::h, S::h, "post_feedforward_layernorm"), AddTo{S::h, S::x}});
    if (token_features > 0) append(gemma4_token_input(s, token_features));
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
