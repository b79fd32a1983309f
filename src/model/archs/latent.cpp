// Multi-head latent attention and the indexer of sparse attention, as data. Keys and defaults:
// configuration_deepseek_v2.py … of Hugging Face transformers. The norms of the latents have an epsilon of their own,
// whatever rms_norm_eps says.
#include "src/model/archs/latent.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace fewbit {
namespace {

using S = Slot;
constexpr float kLatentEps = 1e-6f;  // of q_a_layernorm and kv_a_layernorm
constexpr float kIndexEps = 1e-6f;   // of the layer norm of the index keys

struct Sizes {
  int64_t nope, rope, value, rank, q_rank;  // q_rank 0: queries are made from x at once
};

Sizes sizes_of(const ConfigView& c) {
  return {size_key(c, "qk_nope_head_dim"), size_key(c, "qk_rope_head_dim"), size_key(c, "v_head_dim"),
          size_key(c, "kv_lora_rank"), c.has("q_lora_rank") ? size_key(c, "q_lora_rank") : 0};
}

// Queries and keys of the choice, from the latent of the queries and from x. They stay dense: what they choose is all
// that attention gets to see.
std::vector<BlockOp> indexer(const ConfigView& c, const DecoderSizes& s, const Sizes& z, bool neighbours) {
  if (z.q_rank == 0)
    fail(ErrorKind::unsupported, c.where() + ": q_lora_rank: an indexer needs the latent of the queries, found none");
  const int64_t heads = size_key(c, "index_n_heads"), dim = size_key(c, "index_head_dim");
  if (dim < z.rope)
    fail(ErrorKind::checkpoint,
         fmt::format("{}: index_head_dim: expected at least qk_rope_head_dim ({}), found {}", c.where(), z.rope, dim));
  const std::string at = "self_attn.indexer.";
  return {Project{S::q_latent, S::index_q, at + "wq_b", heads * dim, z.q_rank},
          Project{S::h, S::index_k, at + "wk", dim, s.hidden}, BiasedNorm{S::index_k, at + "k_norm", dim, kIndexEps},
          Project{S::h, S::index_weights, at + "weights_proj", heads, s.hidden},
          Rope{{S::index_q, S::index_k}, dim, c.rope(z.rope), neighbours}};
}

}  // namespace

std::vector<BlockOp> latent_attention_block(const ConfigView& c, const DecoderSizes& s, const LatentForm& form) {
  const Sizes z = sizes_of(c);
  const bool bias = c.flag("attention_bias", false);
  const int64_t q = s.heads * (z.nope + z.rope);
  const std::string at = "self_attn.";
  const LinearDef kv_a = {at + "kv_a_proj_with_mqa", S::fused, z.rank + z.rope, s.hidden, bias};
  std::vector<BlockOp> ops = {Norm{S::x, S::h, NormKind::rms, "input_layernorm", s.hidden, s.eps}};
  const auto add = [&](const std::vector<BlockOp>& more) { ops.insert(ops.end(), more.begin(), more.end()); };
  if (z.q_rank > 0)
    add({Linears{S::h, {{at + "q_a_proj", S::q_latent, z.q_rank, s.hidden, bias}, kv_a}},
         Norm{S::q_latent, S::q_latent, NormKind::rms, at + "q_a_layernorm", z.q_rank, kLatentEps},
         Linears{S::q_latent, {{at + "q_b_proj", S::q, q, z.q_rank}}}});
  else
    add({Linears{S::h, {{at + "q_proj", S::q, q, s.hidden}, kv_a}}});
  if (form.sight == Sight::own) add(indexer(c, s, z, form.index_neighbours));
  add({Split{S::q, {{S::q_nope, s.heads * z.nope}, {S::q_rope, s.heads * z.rope}}, s.heads},
       Split{S::fused, {{S::latent, z.rank}, {S::k_rope, z.rope}}},
       Norm{S::latent, S::latent, NormKind::rms, at + "kv_a_layernorm", z.rank, kLatentEps}});
  if (form.turns) add({Rope{{S::q_rope, S::k_rope}, z.rope, c.rope(z.rope), c.flag("rope_interleave", true)}});
  add({Linears{S::latent, {{at + "kv_b_proj", S::kv, s.heads * (z.nope + z.value), z.rank}}}});
  if (form.sight == Sight::own)
    add({KeyChoice{S::index_q, S::index_k, S::index_weights, static_cast<int>(size_key(c, "index_n_heads")),
                   size_key(c, "index_head_dim"), size_key(c, "index_topk")}});
  const double scale = (form.turns ? c.latent_scale() : 1) / std::sqrt(static_cast<double>(z.nope + z.rope));
  add({LatentAttention{.q_nope = S::q_nope,
                       .q_rope = S::q_rope,
                       .kv = S::kv,
                       .k_rope = S::k_rope,
                       .latent = S::latent,
                       .out = S::attn,
                       .kv_b = at + "kv_b_proj",
                       .heads = s.heads,
                       .nope = z.nope,
                       .rope = z.rope,
                       .value = z.value,
                       .rank = z.rank,
                       .scale = static_cast<float>(scale),
                       .chosen = form.sight != Sight::all},
       Linears{S::attn, {{at + "o_proj", S::h, s.hidden, s.heads * z.value, bias}}}, AddTo{S::h, S::x}});
  return ops;
}

std::vector<BlockOp> latent_block(const ConfigView& c, const DecoderSizes& s, const LatentForm& form) {
  c.must_equal("hidden_act", "silu");
  std::vector<BlockOp> ops = latent_attention_block(c, s, form);
  ops.push_back(Norm{S::x, S::h, NormKind::rms, "post_attention_layernorm", s.hidden, s.eps});
  for (BlockOp& op : gated_mlp("mlp.", s.hidden, s.intermediate, S::h)) ops.push_back(std::move(op));
  ops.push_back(AddTo{S::h, S::x});
  return ops;
}

std::vector<bool> layers_with_experts(const ConfigView& c, const DecoderSizes& s) {
  const int64_t first = c.i64("first_k_dense_replace", 0), every = size_key(c, "moe_layer_freq", 1);
  const std::vector<std::string> types = c.str_list("mlp_layer_types");
  std::vector<bool> out;
  for (int64_t i = 0; i < s.layers; ++i) out.push_back(i >= first && i % every == 0);
  if (types.empty()) return out;
  if (static_cast<int64_t>(types.size()) != s.layers)
    fail(ErrorKind::checkpoint,
         fmt::format("{}: mlp_layer_types: expected {} entries, found {}", c.where(), s.layers, types.size()));
  for (size_t i = 0; i < types.size(); ++i) {
    if (types[i] != "dense" && types[i] != "sparse")
      fail(ErrorKind::unsupported,
           fmt::format("{}: mlp_layer_types[{}]: found \"{}\"; supported: dense, sparse", c.where(), i, types[i]));
    out[i] = types[i] == "sparse";
  }
  return out;
}

Moe& moe_of(std::vector<BlockOp>& block) {
  return std::get<Moe>(
      *std::find_if(block.begin(), block.end(), [](const BlockOp& op) { return std::holds_alternative<Moe>(op); }));
}

void group_experts(const ConfigView& c, Moe& moe, const std::string& key) {
  moe.groups = static_cast<int>(size_key(c, key, 1));
  moe.best_groups = static_cast<int>(size_key(c, "topk_group", 1));
  if (moe.experts % moe.groups != 0 || moe.best_groups > moe.groups ||
      moe.top_k > moe.experts / moe.groups * moe.best_groups ||
      (moe.groups > 1 && moe.experts / moe.groups < moe.judges))
    fail(ErrorKind::checkpoint,
         fmt::format("{}: {}, topk_group: {} and {} do not fit {} experts, {} of them for a token", c.where(), key,
                     moe.groups, moe.best_groups, moe.experts, moe.top_k));
}

}  // namespace fewbit
