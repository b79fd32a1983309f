// Qwen3-Next and Qwen3.5 (3.6, 3.8): three layers of a gated delta net to one of gated attention, all norms but the
// delta net's own around zero. Keys and defaults: configuration_qwen3_next.py and configuration_qwen3_5.py of Hugging
// Face transformers. Qwen3-Next keeps q, k, v, z of the delta net in one linear, by key head, and its experts apart;
// Qwen3.5 has four linears and stacked experts, and may stand inside of a vision model.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "src/model/archs/decoder.h"

namespace fewbit {
namespace {

using S = Slot;
constexpr NormKind kNorm = NormKind::rms_plus_one;

std::vector<BlockOp> gated_attention(const ConfigView& c, const DecoderSizes& s) {
  const int64_t q = s.heads * s.head_dim, kv = s.kv_heads * s.head_dim;
  const bool bias = c.flag("attention_bias", false);
  return {
      Norm{S::x, S::h, kNorm, "input_layernorm", s.hidden, s.eps},
      Linears{S::h,
              {{"self_attn.q_proj", S::fused, 2 * q, s.hidden, bias},
               {"self_attn.k_proj", S::k, kv, s.hidden, bias},
               {"self_attn.v_proj", S::v, kv, s.hidden, bias}}},
      Split{S::fused, {{S::q, q}, {S::z, q}}, s.heads},  // of every head its query, then its gate
      HeadNorm{S::q, kNorm, "self_attn.q_norm", s.head_dim, s.eps},
      HeadNorm{S::k, kNorm, "self_attn.k_norm", s.head_dim, s.eps},
      Rope{{S::q, S::k}, s.head_dim, c.rope(s.head_dim, "", 0.25)},
      decoder_attention(s),
      SigmoidGate{S::z, S::attn, S::attn},
      Linears{S::attn, {{"self_attn.o_proj", S::h, s.hidden, q, bias}}},
      AddTo{S::h, S::x},
  };
}

std::vector<BlockOp> delta_net(const ConfigView& c, const DecoderSizes& s, bool fused) {
  const int k_heads = static_cast<int>(size_key(c, "linear_num_key_heads")),
            v_heads = static_cast<int>(size_key(c, "linear_num_value_heads"));
  const int64_t k_dim = size_key(c, "linear_key_head_dim"), v_dim = size_key(c, "linear_value_head_dim");
  if (v_heads % k_heads != 0)
    fail(ErrorKind::checkpoint,
         fmt::format("{}: linear_num_value_heads: expected a multiple of linear_num_key_heads ({}), found {}",
                     c.where(), k_heads, v_heads));
  const int64_t keys = k_heads * k_dim, values = v_heads * v_dim, qkv = 2 * keys + values;
  const std::string at = "linear_attn.";
  std::vector<BlockOp> ops = {Norm{S::x, S::h, kNorm, "input_layernorm", s.hidden, s.eps}};
  if (fused) {  // by key head: its q and k, then v and z (and beta and decay) of its value heads
    ops.push_back(Linears{S::h, {{at + "in_proj_qkvz", S::fused, qkv + values, s.hidden}}});
    ops.push_back(Project{S::h, S::rates, at + "in_proj_ba", 2 * v_heads, s.hidden});
    ops.push_back(
        Split{S::fused, {{S::qkv, keys}, {S::qkv, keys, keys}, {S::qkv, values, 2 * keys}, {S::z, values}}, k_heads});
    ops.push_back(Split{S::rates, {{S::beta, v_heads}, {S::decay, v_heads}}, k_heads});
  } else {
    ops.push_back(
        Linears{S::h, {{at + "in_proj_qkv", S::qkv, qkv, s.hidden}, {at + "in_proj_z", S::z, values, s.hidden}}});
    ops.push_back(Project{S::h, S::beta, at + "in_proj_b", v_heads, s.hidden});
    ops.push_back(Project{S::h, S::decay, at + "in_proj_a", v_heads, s.hidden});
  }
  const std::vector<BlockOp> rest = {
      ShortConv{S::qkv, S::conv, at + "conv1d", qkv, size_key(c, "linear_conv_kernel_dim")},
      DeltaRule{S::conv, S::conv, S::conv, S::beta, S::decay, S::attn, at + "A_log", at + "dt_bias", k_heads, v_heads,
                k_dim, v_dim},
      HeadNorm{S::attn, NormKind::rms, at + "norm", v_dim, s.eps},
      GatedAct{S::z, S::attn, S::attn, Activation::silu},
      Linears{S::attn, {{at + "out_proj", S::h, s.hidden, values}}},
      AddTo{S::h, S::x},
  };
  ops.insert(ops.end(), rest.begin(), rest.end());
  return ops;
}

// Behind either mixer; with experts where `moe` is set.
std::vector<BlockOp> with_mlp(const ConfigView& c, const DecoderSizes& s, std::vector<BlockOp> ops, bool moe,
                              bool renormalise) {
  const std::vector<BlockOp> norm = {Norm{S::x, S::h, kNorm, "post_attention_layernorm", s.hidden, s.eps}};
  ops.insert(ops.end(), norm.begin(), norm.end());
  std::vector<BlockOp> mlp = gated_mlp("mlp.", s.hidden, s.intermediate, S::h);
  mlp.push_back(AddTo{S::h, S::x});
  if (moe) {
    const int64_t width = size_key(c, "moe_intermediate_size");
    mlp = moe_block(c, mlp, {"mlp.gate", "mlp.experts.", "gate_proj", "up_proj", "down_proj"}, width, renormalise);
    Moe& experts = std::get<Moe>(mlp[0]);
    experts.stacked_gate_up = "mlp.experts.gate_up_proj", experts.stacked_down = "mlp.experts.down_proj";
    add_shared_expert(mlp, "mlp.shared_expert.", size_key(c, "shared_expert_intermediate_size"),
                      "mlp.shared_expert_gate");
  }
  ops.insert(ops.end(), mlp.begin(), mlp.end());
  return ops;
}

// Which layers are attention.
std::vector<bool> attention_layers(const ConfigView& c, const DecoderSizes& s) {
  const std::vector<std::string> types = layer_types(c, s, {"full_attention", "linear_attention"});
  const int64_t interval = size_key(c, "full_attention_interval", 4);
  std::vector<bool> out;
  for (int64_t i = 0; i < s.layers; ++i)
    out.push_back(types.empty() ? (i + 1) % interval == 0 : types[static_cast<size_t>(i)] == "full_attention");
  return out;
}

ModelSpec qwen_next_spec(const ConfigView& c, const DecoderSizes& s, bool fused, bool moe, bool renormalise) {
  c.must_equal("hidden_act", "silu");
  c.must_be_true("attn_output_gate");
  c.must_be_false("use_sliding_window");
  const int64_t step = size_key(c, "decoder_sparse_step", 1);
  const std::vector<int64_t> dense = c.i64_list("mlp_only_layers");
  std::vector<std::vector<BlockOp>> variants;  // delta net, attention; with an MLP, with experts
  for (const bool sparse : {false, true})
    for (const bool attention : {false, true}) {
      if (sparse && !moe) continue;
      std::vector<BlockOp> mixer = attention ? gated_attention(c, s) : delta_net(c, s, fused);
      variants.push_back(with_mlp(c, s, std::move(mixer), sparse, renormalise));
    }
  const std::vector<bool> attention = attention_layers(c, s);
  std::vector<int> variant_of_layer;
  for (int64_t i = 0; i < s.layers; ++i) {
    const bool listed = std::find(dense.begin(), dense.end(), i) != dense.end();
    const bool sparse = moe && !listed && (i + 1) % step == 0;
    variant_of_layer.push_back((sparse ? 2 : 0) + (attention[static_cast<size_t>(i)] ? 1 : 0));
  }
  ModelSpec spec = decoder_spec(c, s, variants, variant_of_layer, std::vector<int64_t>(variant_of_layer.size(), 0));
  spec.final_norm_kind = kNorm;
  return spec;
}

}  // namespace

ModelSpec arch_qwen3_next(const ConfigView& c) {
  return qwen_next_spec(c, decoder_sizes(c), true, true, c.flag("norm_topk_prob", true));
}

ModelSpec arch_qwen3_5(const ConfigView& whole) {
  const ConfigView c = whole.text_model();
  const bool moe = c.architecture().starts_with("Qwen3_5Moe");
  ModelSpec spec = qwen_next_spec(c, decoder_sizes(c), false, moe, true);
  if (c.architecture().ends_with("ForConditionalGeneration")) move_text_model(spec, "model.language_model.");
  return spec;
}

}  // namespace fewbit
