// The mixers of Nemotron-H, and the words of its config that they read.
#include "src/model/archs/nemotron/layers.h"

#include "src/model/archs/mamba2.h"

namespace fewbit {
namespace {

using S = Slot;

std::vector<BlockOp> state_space(const ConfigView& c, const DecoderSizes& s) {
  c.must_equal("mamba_hidden_act", "silu");
  Mamba2Sizes m{.heads = static_cast<int>(size_key(c, "mamba_num_heads")),
                .groups = static_cast<int>(size_key(c, "n_groups")),
                .groups_key = "n_groups",
                .head_dim = size_key(c, "mamba_head_dim"),
                .state = size_key(c, "ssm_state_size"),
                .taps = size_key(c, "conv_kernel", 4),
                .bias = c.flag("mamba_proj_bias", c.flag("use_bias", false)),
                .conv_bias = c.flag("use_conv_bias", true)};
  m.norm_groups = m.groups;
  return mamba2(c, s, "mixer.", m);
}

std::vector<BlockOp> attention(const ConfigView& c, const DecoderSizes& s) {
  const int64_t q = s.heads * s.head_dim, kv = s.kv_heads * s.head_dim;
  const bool bias = c.flag("attention_bias", false);
  return {
      Linears{S::h,
              {{"mixer.q_proj", S::q, q, s.hidden, bias},
               {"mixer.k_proj", S::k, kv, s.hidden, bias},
               {"mixer.v_proj", S::v, kv, s.hidden, bias}}},
      decoder_attention(s),
      Linears{S::attn, {{"mixer.o_proj", S::h, s.hidden, q, bias}}},
  };
}

std::vector<BlockOp> squared_relu_mlp(const ConfigView& c, const std::string& at, int64_t hidden, int64_t width,
                                      Slot out) {
  c.must_equal("mlp_hidden_act", "relu2");
  const bool bias = c.flag("mlp_bias", false);
  return {Linears{S::h, {{at + "up_proj", S::up, width, hidden, bias}}},
          GatedAct{S::up, S::up, S::act, Activation::relu},
          Linears{S::act, {{at + "down_proj", out, hidden, width, bias}}}};
}

std::vector<BlockOp> experts(const ConfigView& c, const DecoderSizes& s) {
  const int64_t width = size_key(c, "moe_intermediate_size"),
                shared = size_key(c, "n_shared_experts", 1) * size_key(c, "moe_shared_expert_intermediate_size", width);
  if (c.has("moe_latent_size"))
    fail(ErrorKind::unsupported, c.where() + ": moe_latent_size: experts of a narrower state are not supported");
  Moe moe{.in = S::h,
          .out = S::h,
          .router = "mixer.gate",
          .hidden = s.hidden,
          .experts = static_cast<int>(size_key(c, "n_routed_experts")),
          .top_k = static_cast<int>(size_key(c, "num_experts_per_tok")),
          .renormalise = c.flag("norm_topk_prob", true),
          .expert_name = "mixer.experts.",
          .gate = {"", S::gate, width, s.hidden},  // there is none
          .up = {"up_proj", S::up, width, s.hidden},
          .down = {"down_proj", S::h, s.hidden, width},
          .act = Activation::relu};
  moe.score = RouterScore::sigmoid;
  moe.scaling = static_cast<float>(c.f64("routed_scaling_factor", 1));
  moe.correction = "mixer.gate.e_score_correction_bias", moe.correction_shape = {moe.experts};
  group_experts(c, moe, "n_group");
  std::vector<BlockOp> ops = squared_relu_mlp(c, "mixer.shared_experts.", s.hidden, shared, S::shared);
  ops.push_back(moe);  // last, for it writes where all of them read
  ops.push_back(AddTo{S::shared, S::h});
  return ops;
}

}  // namespace

std::vector<BlockOp> nemotron_mixer(const ConfigView& c, const DecoderSizes& s, char letter) {
  return letter == 'M'   ? state_space(c, s)
         : letter == '*' ? attention(c, s)
         : letter == '-' ? squared_relu_mlp(c, "mixer.", s.hidden, s.intermediate, S::h)
                         : experts(c, s);
}

}  // namespace fewbit
