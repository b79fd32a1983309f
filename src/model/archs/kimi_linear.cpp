// Kimi Linear: layers of a delta rule whose decay has a value for every key channel (KDA), with latent attention that
// turns nothing between them; experts as DeepSeek V3's under other names. Keys: configuration_kimi.py of
// moonshotai/Kimi-Linear-48B-A3B. Its lists of layers count from 1.
#include <fmt/format.h>

#include <algorithm>

#include "src/model/archs/latent.h"

namespace fewbit {
namespace {

using S = Slot;

std::vector<BlockOp> delta_block(const DecoderSizes& s, const ConfigView& linear) {
  const int heads = static_cast<int>(size_key(linear, "num_heads"));
  const int64_t dim = size_key(linear, "head_dim"), all = heads * dim,
                taps = size_key(linear, "short_conv_kernel_size");
  const std::string at = "self_attn.";
  return {
      Norm{S::x, S::h, NormKind::rms, "input_layernorm", s.hidden, s.eps},
      Linears{S::h,
              {{at + "q_proj", S::q, all, s.hidden},
               {at + "k_proj", S::k, all, s.hidden},
               {at + "v_proj", S::v, all, s.hidden}}},
      Project{S::h, S::rates, at + "f_a_proj", dim, s.hidden},
      Project{S::rates, S::decay, at + "f_b_proj", all, dim},
      Project{S::h, S::beta, at + "b_proj", heads, s.hidden},
      Project{S::h, S::rates, at + "g_a_proj", dim, s.hidden},
      Project{S::rates, S::z, at + "g_b_proj", all, dim},
      ShortConv{S::q, S::conv, at + "q_conv1d", all, taps},
      ShortConv{S::k, S::conv_k, at + "k_conv1d", all, taps},
      ShortConv{S::v, S::conv_v, at + "v_conv1d", all, taps},
      DeltaRule{.q = S::conv,
                .k = S::conv_k,
                .v = S::conv_v,
                .beta = S::beta,
                .decay = S::decay,
                .out = S::attn,
                .a_log = at + "A_log",
                .dt_bias = at + "dt_bias",
                .k_heads = heads,
                .v_heads = heads,
                .k_dim = dim,
                .v_dim = dim,
                .each_channel = true,
                .a_log_shape = {1, 1, heads, 1}},
      HeadNorm{S::attn, NormKind::rms, at + "o_norm", dim, s.eps},
      SigmoidGate{S::z, S::attn, S::attn},
      Linears{S::attn, {{at + "o_proj", S::h, s.hidden, all}}},
      AddTo{S::h, S::x},
  };
}

std::vector<BlockOp> with_experts(const ConfigView& c, const std::vector<BlockOp>& dense) {
  const int64_t width = size_key(c, "moe_intermediate_size");
  std::vector<BlockOp> block =
      moe_block(c, dense, {"block_sparse_moe.gate", "block_sparse_moe.experts.", "w1", "w3", "w2"}, width,
                c.flag("moe_renormalize", true));
  Moe& moe = experts_of(block);
  moe.score = RouterScore::sigmoid;
  moe.scaling = static_cast<float>(c.f64("routed_scaling_factor", 1));
  correct(moe, "block_sparse_moe.gate.e_score_correction_bias", {moe.experts});
  if (c.flag("use_grouped_topk", true)) group_experts(c, moe, "num_expert_group");
  if (const int64_t shared = c.i64("num_shared_experts", 0); shared > 0)
    add_shared_expert(block, "block_sparse_moe.shared_experts.", shared * width, "");
  return block;
}

std::vector<bool> delta_layers(const ConfigView& c, const DecoderSizes& s, const ConfigView& linear) {
  std::vector<int> kind(static_cast<size_t>(s.layers), 0);  // 1: delta rule, 2: attention
  for (const auto& [key, value] : {std::pair{"kda_layers", 1}, std::pair{"full_attn_layers", 2}})
    for (const int64_t layer : linear.i64_list(key)) {
      if (layer < 1 || layer > s.layers || kind[static_cast<size_t>(layer - 1)] != 0)
        fail(ErrorKind::checkpoint, fmt::format("{}: {}: {} is no layer from 1 to {}, or is named twice",
                                                linear.where(), key, layer, s.layers));
      kind[static_cast<size_t>(layer - 1)] = value;
    }
  if (std::count(kind.begin(), kind.end(), 0) > 0)
    fail(ErrorKind::checkpoint, fmt::format("{}: linear_attn_config: {} of {} layers stand in no list", c.where(),
                                            std::count(kind.begin(), kind.end(), 0), s.layers));
  std::vector<bool> out(kind.size());
  for (size_t i = 0; i < kind.size(); ++i) out[i] = kind[i] == 1;
  return out;
}

ModelSpec arch_kimi_linear(const ConfigView& c) {
  DecoderSizes s = decoder_sizes(c);
  s.positions = size_key(c, "model_max_length", s.positions);
  c.must_equal("hidden_act", "silu");
  c.must_equal("moe_router_activation_func", "sigmoid");
  c.must_be_true("mla_use_nope");
  const ConfigView linear = c.section("linear_attn_config");
  const std::vector<bool> delta = delta_layers(c, s, linear), sparse = layers_with_experts(c, s, 0);
  std::vector<std::vector<BlockOp>> variants;  // delta rule, attention; with an MLP, with experts
  for (const bool attention : {false, true}) {
    std::vector<BlockOp> block = attention ? latent_attention_block(c, s, {.turns = false}) : delta_block(s, linear);
    block.push_back(Norm{S::x, S::h, NormKind::rms, "post_attention_layernorm", s.hidden, s.eps});
    for (BlockOp& op : gated_mlp("mlp.", s.hidden, s.intermediate, S::h)) block.push_back(std::move(op));
    block.push_back(AddTo{S::h, S::x});
    variants.push_back(block);
    variants.push_back(with_experts(c, block));
  }
  std::vector<int> variant_of_layer;
  for (size_t i = 0; i < delta.size(); ++i) variant_of_layer.push_back((delta[i] ? 0 : 2) + (sparse[i] ? 1 : 0));
  return decoder_spec(c, s, variants, variant_of_layer, std::vector<int64_t>(delta.size(), 0));
}

constexpr GgufExperts gguf_experts_of_kimi() {
  GgufExperts e = gguf_experts(RouterScore::sigmoid);
  e.norm_key = false, e.scale_key = true;
  e.count = "num_experts", e.used = "num_experts_per_token", e.renormalised = "moe_renormalize";
  e.shared_count = "num_shared_experts", e.groups = "num_expert_group";
  return e;
}

}  // namespace

const Family family_kimi_linear = {
    .classes = {{"KimiLinearForCausalLM"}},
    .model_types = {"kimi_linear"},
    .build = &arch_kimi_linear,
    .keeps = {{"mlp.gate_proj", kFirstDense}, {"mlp.up_proj", kFirstDense}, {"mlp.down_proj", kFirstDense}},
    .gguf = {.arch = "kimi-linear",
             .names = {{"self_attn.f_a_proj", "ssm_f_a"},
                       {"self_attn.f_b_proj", "ssm_f_b"},
                       {"self_attn.b_proj", "ssm_beta"},
                       {"self_attn.g_a_proj", "ssm_g_a"},
                       {"self_attn.g_b_proj", "ssm_g_b"},
                       {"self_attn.q_conv1d", "ssm_conv1d_q"},
                       {"self_attn.k_conv1d", "ssm_conv1d_k"},
                       {"self_attn.v_conv1d", "ssm_conv1d_v"},
                       {"self_attn.A_log", "ssm_a"},
                       {"self_attn.dt_bias", "ssm_dt.bias"},
                       {"self_attn.o_norm", "ssm_norm"},
                       {"block_sparse_moe.shared_experts.gate_proj", "ffn_gate_shexp"},
                       {"block_sparse_moe.shared_experts.up_proj", "ffn_up_shexp"},
                       {"block_sparse_moe.shared_experts.down_proj", "ffn_down_shexp"}},
             .has_experts = true,
             .experts = gguf_experts_of_kimi(),
             .recurrent = {.kind = GgufRecurrent::Kind::channel_decay, .list = GgufRecurrent::List::numbers},
             .latent = {.used = true, .turns = false, .any_queries = true},
             .pairs = true,
             .tied = false,
             .config = R"({"mla_use_nope": true})"},
};

}  // namespace fewbit
