// Gemma 2 and Gemma 3, alone or inside a vision model. Both norm what attention and the MLP add to the states as well
// as what they read, scale the embedding by sqrt(hidden), and alternate layers with a sliding window and full ones.
// Gemma 2 caps attention scores and logits; Gemma 3 norms the heads of q and k and turns its two kinds of layer by
// different rotations. Keys and defaults: configuration_gemma2.py and configuration_gemma3.py of transformers.
#include <fmt/format.h>

#include <cmath>

#include "src/model/archs/decoder.h"

namespace fewbit {
namespace {

DecoderSizes gemma_sizes(const ConfigView& c) {
  DecoderSizes s = decoder_sizes(c);
  s.head_dim = size_key(c, "head_dim", 256);  // not hidden / heads
  return s;
}

// A soft cap of the config: `fallback` where the key is absent, none where it is null. 0 = none.
float soft_cap(const ConfigView& c, const std::string& key, double fallback) {
  const double cap = c.f64(key, c.mentions(key) ? 0 : fallback);
  if (cap < 0) fail(ErrorKind::checkpoint, fmt::format("{}: {}: expected at least 0, found {}", c.where(), key, cap));
  return static_cast<float>(cap);
}

std::vector<BlockOp> gemma_block(const ConfigView& c, const DecoderSizes& s, const RopeParams& rope,
                                 float attention_cap) {
  using S = Slot;
  c.must_equal("hidden_activation", "gelu_pytorch_tanh");  // hidden_act is not read by Gemma's own code
  c.must_be_false("use_bidirectional_attention");
  const bool bias = c.flag("attention_bias", false);
  const int64_t q = s.heads * s.head_dim, kv = s.kv_heads * s.head_dim;
  const double scalar = c.f64("query_pre_attn_scalar", 256);
  if (!(scalar > 0))
    fail(ErrorKind::checkpoint,
         fmt::format("{}: query_pre_attn_scalar: expected a number above 0, found {}", c.where(), scalar));
  Attention attend = decoder_attention(s);
  attend.scale = static_cast<float>(1 / std::sqrt(scalar));
  attend.softcap = attention_cap;
  const auto norm = [&](S in, const char* name) {
    return Norm{in, S::h, NormKind::rms_plus_one, name, s.hidden, s.eps};
  };
  return {
      norm(S::x, "input_layernorm"),
      Linears{S::h,
              {{"self_attn.q_proj", S::q, q, s.hidden, bias},
               {"self_attn.k_proj", S::k, kv, s.hidden, bias},
               {"self_attn.v_proj", S::v, kv, s.hidden, bias}}},
      Rope{{S::q, S::k}, s.head_dim, rope},
      attend,
      Linears{S::attn, {{"self_attn.o_proj", S::h, s.hidden, q, bias}}},
      norm(S::h, "post_attention_layernorm"),
      AddTo{S::h, S::x},
      norm(S::x, "pre_feedforward_layernorm"),
      Linears{S::h,
              {{"mlp.gate_proj", S::gate, s.intermediate, s.hidden}, {"mlp.up_proj", S::up, s.intermediate, s.hidden}}},
      GatedAct{S::gate, S::up, S::act, Activation::gelu_tanh},
      Linears{S::act, {{"mlp.down_proj", S::h, s.hidden, s.intermediate}}},
      norm(S::h, "post_feedforward_layernorm"),
      AddTo{S::h, S::x},
  };
}

// Without layer_types every `pattern`-th layer sees everything.
std::vector<int64_t> gemma_windows(const ConfigView& c, const DecoderSizes& s, int64_t pattern) {
  const int64_t window = size_key(c, "sliding_window", 4096);
  std::vector<int64_t> windows = layer_windows(c, s, window, 0);
  if (c.str_list("layer_types").empty())
    for (size_t i = 0; i < windows.size(); ++i)
      if ((static_cast<int64_t>(i) + 1) % pattern == 0) windows[i] = 0;
  return windows;
}

ModelSpec with_gemma_ends(const ConfigView& c, ModelSpec spec, float logit_cap) {
  spec.embed_scale = std::sqrt(static_cast<float>(spec.hidden));
  spec.final_norm_kind = NormKind::rms_plus_one;
  spec.logit_softcap = logit_cap;
  if (c.flag("tie_word_embeddings", true)) spec.lm_head = spec.embed;
  return spec;
}

ModelSpec arch_gemma2(const ConfigView& c) {
  const DecoderSizes s = gemma_sizes(c);
  const std::vector<BlockOp> block = gemma_block(c, s, c.rope(s.head_dim), soft_cap(c, "attn_logit_softcapping", 50));
  return with_gemma_ends(c, decoder_spec(c, s, block, gemma_windows(c, s, 2)),
                         soft_cap(c, "final_logit_softcapping", 30));
}

ModelSpec arch_gemma3(const ConfigView& given) {
  // What Gemma3TextConfig has by itself; the published configs of the vision models leave it out.
  const ConfigView c = given.with_defaults(
      R"({"hidden_size": 2304, "intermediate_size": 9216, "num_hidden_layers": 26, "num_attention_heads": 8,
          "num_key_value_heads": 4, "vocab_size": 262208, "max_position_embeddings": 131072})");
  const DecoderSizes s = gemma_sizes(c);
  std::vector<std::vector<BlockOp>> variants;  // full, sliding
  for (const char* section : {"full_attention", "sliding_attention"}) {
    variants.push_back(gemma_block(c, s, c.rope(s.head_dim, section), soft_cap(c, "attn_logit_softcapping", 0)));
    add_head_norms(variants.back(), s, NormKind::rms_plus_one);
  }
  const char* key = c.has("sliding_window_pattern") ? "sliding_window_pattern" : "_sliding_window_pattern";
  const std::vector<int64_t> windows = gemma_windows(c, s, size_key(c, key, 6));
  std::vector<int> sliding;
  for (const int64_t w : windows) sliding.push_back(w > 0);
  return with_gemma_ends(c, decoder_spec(c, s, variants, sliding, windows), soft_cap(c, "final_logit_softcapping", 0));
}

}  // namespace

// With norms behind attention and the MLP too, "post_attention_layernorm" is not the one in front of the MLP.
const Family family_gemma2 = {
    .classes = {{"Gemma2ForCausalLM"}},
    .model_types = {"gemma2"},
    .build = &arch_gemma2,
    .chat = "gemma",
    .gguf = {.arch = "gemma2",
             .names = {{"post_attention_layernorm", "post_attention_norm"}},
             .window_period = 2,
             .window = 4096,
             .attention_cap = 50,
             .logit_cap = 30,
             .logit_cap_key = true,
             .scaled_by_width = 46,  // Gemma 2 27B
             .score_keys = true,
             .untied = false,
             .activation_key = "hidden_activation",
             .activation = "gelu_pytorch_tanh"},
};

const Family family_gemma3 = {
    .classes = {{"Gemma3ForCausalLM"},
                {"Gemma3ForConditionalGeneration", "language_model.model.", "language_model.lm_head."}},
    .model_types = {"gemma3_text", "gemma3"},
    .build = &arch_gemma3,
    .keeps = {{"vision_tower.*", kVisionTower, true}, {"multi_modal_projector.*", kProjector, true}},
    .chat = "gemma",
    .gguf = {.arch = "gemma3",
             .names = {{"post_attention_layernorm", "post_attention_norm"}},
             .window_period = 6,
             .sliding_rotation = true,
             .logit_cap_key = true,
             .scaled_by_width = 62,  // Gemma 3 27B
             .score_keys = true,
             .activation_key = "hidden_activation",
             .activation = "gelu_pytorch_tanh"},
};

}  // namespace fewbit
