// LFM2 (Liquid AI): layers of a short convolution between two gates, and layers of attention, each with an MLP behind
// it. Keys and defaults: configuration_lfm2.py of Hugging Face transformers.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "src/model/archs/decoder.h"

namespace fewbit {
namespace {

using S = Slot;

// The width of the MLP, which the config may give before its own adjustments.
int64_t mlp_width(const ConfigView& c, int64_t width) {
  if (!c.flag("block_auto_adjust_ff_dim", true)) return width;
  const int64_t multiple = size_key(c, "block_multiple_of", 256);
  const int64_t two_thirds = 2 * width / 3;
  const double adjusted = c.f64("block_ffn_dim_multiplier", 1) * static_cast<double>(two_thirds);
  return (static_cast<int64_t>(adjusted) + multiple - 1) / multiple * multiple;
}

std::vector<BlockOp> convolution(const ConfigView& c, const DecoderSizes& s) {
  const bool bias = c.flag("conv_bias", false);
  return {
      Norm{S::x, S::h, NormKind::rms, "operator_norm", s.hidden, s.eps},
      Linears{S::h, {{"conv.in_proj", S::fused, 3 * s.hidden, s.hidden, bias}}},
      Split{S::fused, {{S::beta, s.hidden}, {S::z, s.hidden}, {S::qkv, s.hidden}}},
      GatedAct{S::beta, S::qkv, S::qkv, Activation::none},
      ShortConv{S::qkv, S::conv, "conv.conv", s.hidden, size_key(c, "conv_L_cache", 3), false, bias},
      GatedAct{S::z, S::conv, S::conv, Activation::none},
      Linears{S::conv, {{"conv.out_proj", S::h, s.hidden, s.hidden, bias}}},
      AddTo{S::h, S::x},
  };
}

std::vector<BlockOp> attention(const ConfigView& c, const DecoderSizes& s) {
  const int64_t q = s.heads * s.head_dim, kv = s.kv_heads * s.head_dim;
  return {
      Norm{S::x, S::h, NormKind::rms, "operator_norm", s.hidden, s.eps},
      Linears{S::h,
              {{"self_attn.q_proj", S::q, q, s.hidden},
               {"self_attn.k_proj", S::k, kv, s.hidden},
               {"self_attn.v_proj", S::v, kv, s.hidden}}},
      HeadNorm{S::q, NormKind::rms, "self_attn.q_layernorm", s.head_dim, s.eps},
      HeadNorm{S::k, NormKind::rms, "self_attn.k_layernorm", s.head_dim, s.eps},
      Rope{{S::q, S::k}, s.head_dim, c.rope(s.head_dim)},
      decoder_attention(s),
      Linears{S::attn, {{"self_attn.out_proj", S::h, s.hidden, q}}},
      AddTo{S::h, S::x},
  };
}

std::vector<int> attention_layers(const ConfigView& c, const DecoderSizes& s) {
  const std::vector<std::string> types = layer_types(c, s, {"conv", "full_attention"});
  const std::vector<int64_t> listed = c.i64_list("full_attn_idxs");  // without any, all are attention
  std::vector<int> out;
  for (int64_t i = 0; i < s.layers; ++i)
    out.push_back(types.empty() ? listed.empty() || std::find(listed.begin(), listed.end(), i) != listed.end()
                                : types[static_cast<size_t>(i)] == "full_attention");
  return out;
}

ModelSpec arch_lfm2(const ConfigView& c) {
  DecoderSizes s = decoder_sizes(c);
  s.eps = static_cast<float>(c.f64("norm_eps", 1e-5));
  s.intermediate = mlp_width(c, size_key(c, "block_ff_dim", s.intermediate));
  std::vector<std::vector<BlockOp>> variants = {convolution(c, s), attention(c, s)};
  for (std::vector<BlockOp>& ops : variants) {
    ops.push_back(Norm{S::x, S::h, NormKind::rms, "ffn_norm", s.hidden, s.eps});
    ops.push_back(Linears{S::h,
                          {{"feed_forward.w1", S::gate, s.intermediate, s.hidden},
                           {"feed_forward.w3", S::up, s.intermediate, s.hidden}}});
    ops.push_back(GatedAct{S::gate, S::up, S::act, Activation::silu});
    ops.push_back(Linears{S::act, {{"feed_forward.w2", S::h, s.hidden, s.intermediate}}});
    ops.push_back(AddTo{S::h, S::x});
  }
  ModelSpec spec =
      decoder_spec(c, s, variants, attention_layers(c, s), std::vector<int64_t>(static_cast<size_t>(s.layers), 0));
  spec.final_norm = "model.embedding_norm.weight";
  if (c.flag("tie_word_embeddings", c.flag("tie_embedding", true))) spec.lm_head = spec.embed;
  return spec;
}

}  // namespace

const Family family_lfm2 = {
    .classes = {{"Lfm2ForCausalLM"}},
    .model_types = {"lfm2"},
    .build = &arch_lfm2,
    .gguf = {.arch = "lfm2",
             .names = {{"operator_norm", "attn_norm"},
                       {"ffn_norm", "ffn_norm"},
                       {"self_attn.q_layernorm", "attn_q_norm"},
                       {"self_attn.k_layernorm", "attn_k_norm"},
                       {"self_attn.out_proj", "attn_output"},
                       {"conv.in_proj", "shortconv.in_proj"},
                       {"conv.conv", "shortconv.conv"},
                       {"conv.out_proj", "shortconv.out_proj"},
                       {"feed_forward.w1", "ffn_gate"},
                       {"feed_forward.w3", "ffn_up"},
                       {"feed_forward.w2", "ffn_down"}},
             .final_norm = "token_embd_norm",
             .recurrent = {.kind = GgufRecurrent::Kind::short_conv, .word = "conv", .attention_word = "full_attention"},
             .square = true,
             .epsilon = "norm_eps",
             .config = R"({"block_auto_adjust_ff_dim": false})"},
};

}  // namespace fewbit
