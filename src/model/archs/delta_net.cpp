#include "src/model/archs/delta_net.h"

#include <fmt/format.h>

namespace fewbit {

using S = Slot;

std::vector<BlockOp> gated_attention(const ConfigView& c, const DecoderSizes& s) {
  const int64_t q = s.heads * s.head_dim, kv = s.kv_heads * s.head_dim;
  const bool bias = c.flag("attention_bias", false);
  return {
      Norm{S::x, S::h, kNextNorm, "input_layernorm", s.hidden, s.eps},
      Linears{S::h,
              {{"self_attn.q_proj", S::fused, 2 * q, s.hidden, bias},
               {"self_attn.k_proj", S::k, kv, s.hidden, bias},
               {"self_attn.v_proj", S::v, kv, s.hidden, bias}}},
      Split{S::fused, {{S::q, q}, {S::z, q}}, s.heads},  // of every head its query, then its gate
      HeadNorm{S::q, kNextNorm, "self_attn.q_norm", s.head_dim, s.eps},
      HeadNorm{S::k, kNextNorm, "self_attn.k_norm", s.head_dim, s.eps},
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
  std::vector<BlockOp> ops = {Norm{S::x, S::h, kNextNorm, "input_layernorm", s.hidden, s.eps}};
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

}  // namespace fewbit
