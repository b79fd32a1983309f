// DeepSeek V4: several residual streams (hyper-connections), attention of all heads over one shared key that is the
// value too, within a window and over keys of whole blocks of tokens, and first layers whose experts the token itself
// says. Keys: configuration_deepseek_v4.py of transformers, and those of the published checkpoints.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "src/model/archs/decoder.h"

namespace fewbit {
namespace {

using S = Slot;

// What a layer sees behind its window: keys of blocks of `every` tokens (0: none), all of them or those that an indexer
// chooses; its experts by the token where `hashed`.
struct LayerForm {
  int64_t every = 0;
  bool chooses = false, hashed = false;
  bool operator==(const LayerForm&) const = default;
};

std::vector<LayerForm> layer_forms(const ConfigView& c, const DecoderSizes& s) {
  constexpr const char *kSparse = "compressed_sparse_attention", *kHeavy = "heavily_compressed_attention";
  const std::vector<std::string> types = layer_types(c, s, {"sliding_attention", kSparse, kHeavy});
  std::vector<int64_t> ratios = c.i64_list("compress_ratios");
  if (types.empty() && std::ssize(ratios) < s.layers)  // a last entry may belong to the layer that predicts further
    fail(ErrorKind::checkpoint, fmt::format("{}: compress_ratios: expected {} entries, found {}; or give layer_types",
                                            c.where(), s.layers, ratios.size()));
  std::vector<LayerForm> forms(static_cast<size_t>(s.layers));
  const int64_t hashed = c.i64("num_hash_layers", 0);
  for (size_t i = 0; i < forms.size(); ++i) {
    constexpr int64_t kSparseRatio = 4;  // of the published models; wider blocks are all seen
    const bool compresses = types.empty() ? ratios[i] > 0 : types[i] != "sliding_attention";
    if (compresses && types.empty())
      forms[i].every = ratios[i];
    else if (compresses)
      forms[i].every = size_key(c.section("compress_rates"), types[i]);
    forms[i].chooses = compresses && (types.empty() ? ratios[i] == kSparseRatio : types[i] == kSparse);
    forms[i].hashed = static_cast<int64_t>(i) < hashed;
  }
  return forms;
}

// The last features of a head turn, the others do not: their frequencies are 0.
RopeParams last_turn(RopeParams params, int64_t head_dim, bool back = false) {
  params.attention_scale = 1;
  std::vector<float> padded(static_cast<size_t>(head_dim / 2) - params.inv_freq.size(), 0.f);
  for (const float f : params.inv_freq) padded.push_back(back ? -f : f);
  params.inv_freq = padded;
  return params;
}

struct Parts {
  const ConfigView& c;
  const DecoderSizes& s;
  int64_t q_rank = size_key(c, "q_lora_rank"), streams = size_key(c, "hc_mult");

  RopeParams rope(const LayerForm& form) const {
    const int64_t rot = size_key(c, "qk_rope_head_dim");
    return form.every > 0 ? c.rope_of_theta(rot, "compress_rope_theta", 160000, true)
                          : c.rope_of_theta(rot, "rope_theta", 10000, false);
  }
  ReadStreams read(const std::string& name) const {
    return {S::x,     S::h,  S::mix, name, static_cast<int>(streams), s.hidden,
            s.eps, static_cast<float>(c.f64("hc_eps", 1e-6)), static_cast<int>(c.i64("hc_sinkhorn_iters", 20))};
  }
  // The key of a block of tokens, by the names below `at`.
  std::vector<BlockOp> compressor(const LayerForm& f, const std::string& at, int64_t dim, Slot k, Slot gate,
                                  Slot out) const {
    const CompressKeys op{k, gate, out, at + "compressor", f.every, dim, f.chooses, last_turn(rope(f), dim), s.eps};
    return {Project{S::h, k, at + "compressor.wkv", op.width(), s.hidden},
            Project{S::h, gate, at + "compressor.wgate", op.width(), s.hidden}, op};
  }
  std::vector<BlockOp> indexer(const LayerForm& f) const {
    const std::string at = "attn.indexer.";
    const int64_t heads = size_key(c, "index_n_heads"), dim = size_key(c, "index_head_dim");
    std::vector<BlockOp> ops = {Project{S::q_latent, S::index_q, at + "wq_b", heads * dim, q_rank},
                                Rope{{S::index_q}, dim, last_turn(rope(f), dim), true}};
    for (BlockOp& op : compressor(f, at, dim, S::index_block_k, S::index_block_gate, S::index_k))
      ops.push_back(std::move(op));
    ops.push_back(Project{S::h, S::index_weights, at + "weights_proj", heads, s.hidden});
    ops.push_back(KeyChoice{S::index_q, S::index_k, S::index_weights, static_cast<int>(heads), dim,
                            size_key(c, "index_topk"), f.every});
    return ops;
  }
  std::vector<BlockOp> attention(const LayerForm& f) const {
    const int64_t all = s.heads * s.head_dim, groups = size_key(c, "o_groups"), rank = size_key(c, "o_lora_rank");
    std::vector<BlockOp> ops = {
        read("hc_attn"),
        Norm{S::h, S::h, NormKind::rms, "attn_norm", s.hidden, s.eps},
        Linears{S::h, {{"attn.wq_a", S::q_latent, q_rank, s.hidden}, {"attn.wkv", S::k, s.head_dim, s.hidden}}},
        Norm{S::q_latent, S::q_latent, NormKind::rms, "attn.q_norm", q_rank, s.eps},
        Norm{S::k, S::k, NormKind::rms, "attn.kv_norm", s.head_dim, s.eps},
        Linears{S::q_latent, {{"attn.wq_b", S::q, all, q_rank}}},
        HeadNorm{S::q, NormKind::rms, "", s.head_dim, s.eps},
        Rope{{S::q, S::k}, s.head_dim, last_turn(rope(f), s.head_dim), true}};
    const auto add = [&](const std::vector<BlockOp>& more) { ops.insert(ops.end(), more.begin(), more.end()); };
    if (f.every > 0) add(compressor(f, "attn.", s.head_dim, S::block_k, S::block_gate, S::block_key));
    if (f.chooses) add(indexer(f));
    add({SharedKeyAttention{S::q, S::k, f.every > 0 ? S::block_key : S::count, S::attn, "attn.attn_sink", s.heads,
                            s.head_dim, 1 / std::sqrt(static_cast<float>(s.head_dim)), size_key(c, "sliding_window"),
                            std::max<int64_t>(1, f.every), f.chooses},
         Rope{{S::attn}, s.head_dim, last_turn(rope(f), s.head_dim, true), true},
         Project{S::attn, S::latent, "attn.wo_a", groups * rank, all / groups, static_cast<int>(groups)},
         Linears{S::latent, {{"attn.wo_b", S::h, s.hidden, groups * rank}}}, WriteStreams{S::h, S::mix, S::x}});
    return ops;
  }
};

std::vector<BlockOp> block_of(const ConfigView& c, const DecoderSizes& s, const LayerForm& form) {
  const Parts parts{c, s};
  const int64_t width = size_key(c, "moe_intermediate_size"), shared = c.i64("n_shared_experts", 1) * width;
  const auto limit = static_cast<float>(c.f64("swiglu_limit", 0));
  std::vector<BlockOp> ops = parts.attention(form);
  ops.push_back(parts.read("hc_ffn"));
  ops.push_back(Norm{S::h, S::h, NormKind::rms, "ffn_norm", s.hidden, s.eps});
  for (BlockOp& op : gated_mlp("", s.hidden, width, S::h)) ops.push_back(std::move(op));
  ops = moe_block(c, ops, {"ffn.gate", "ffn.experts.", "w1", "w3", "w2"}, width, c.flag("norm_topk_prob", true));
  Moe& moe = experts_of(ops);
  moe.score = RouterScore::root_softplus;
  moe.scaling = static_cast<float>(c.f64("routed_scaling_factor", 1.5));
  moe.swiglu_limit = limit, moe.plain_swiglu = true;
  const TokenRoute route{S::h,    S::route, moe.router, "ffn.gate.tid2eid", s.hidden,
                         s.vocab, moe.experts, moe.top_k, moe.renormalise, moe.scaling};
  if (form.hashed)
    moe.router.clear(), moe.router_in = S::route;
  else
    correct(moe, "ffn.gate.bias", {moe.experts});
  if (shared > 0) {
    add_shared_expert(ops, "ffn.shared_experts.", shared, "");
    for (BlockOp& op : ops) {
      if (auto* g = std::get_if<GatedAct>(&op)) g->limit = limit;
      if (auto* group = std::get_if<Linears>(&op))
        for (LinearDef& l : group->items)
          for (const auto& [from, to] : {std::pair{".gate_proj", ".w1"}, {".up_proj", ".w3"}, {".down_proj", ".w2"}})
            if (const size_t at = l.name.find(from); at != std::string::npos) l.name = l.name.substr(0, at) + to;
    }
  }
  const auto at =
      std::find_if(ops.begin(), ops.end(), [](const BlockOp& op) { return std::holds_alternative<Moe>(op); });
  if (form.hashed) ops.insert(at, route);
  ops.push_back(WriteStreams{S::h, S::mix, S::x});
  return ops;
}

ModelSpec arch_deepseek_v4(const ConfigView& c) {
  const DecoderSizes s = decoder_sizes(c);
  c.must_equal("hidden_act", "silu");
  c.must_equal("scoring_func", "sqrtsoftplus");
  c.must_equal("topk_method", "noaux_tc");
  c.must_equal("expert_dtype", "bf16");
  c.must_be_false("attention_bias");
  if (s.kv_heads != 1 || s.heads % size_key(c, "o_groups") != 0)
    fail(ErrorKind::checkpoint, fmt::format("{}: num_key_value_heads, o_groups: expected 1 and a divisor of {} heads, "
                                            "found {} and {}",
                                            c.where(), s.heads, s.kv_heads, size_key(c, "o_groups")));
  std::vector<LayerForm> known;
  std::vector<std::vector<BlockOp>> variants;
  std::vector<int> variant_of_layer;
  for (const LayerForm& form : layer_forms(c, s)) {
    const auto at = std::find(known.begin(), known.end(), form);
    variant_of_layer.push_back(static_cast<int>(at - known.begin()));
    if (at != known.end()) continue;
    known.push_back(form);
    variants.push_back(block_of(c, s, form));
  }
  ModelSpec spec = decoder_spec(c, s, variants, variant_of_layer, no_windows(s));
  spec.block_prefix = "layers.", spec.final_norm = "norm.weight";
  spec.lm_head = spec.tied() ? "embed.weight" : "head.weight";
  spec.embed = "embed.weight";
  spec.streams = static_cast<int>(size_key(c, "hc_mult"));
  spec.streams_name = "hc_head", spec.streams_eps = static_cast<float>(c.f64("hc_eps", 1e-6));
  return spec;
}

}  // namespace

const Family family_deepseek_v4 = {
    .classes = {{"DeepseekV4ForCausalLM"}},
    .model_types = {"deepseek_v4"},
    .build = &arch_deepseek_v4,
    .keeps = {{"mtp.*", kNextTokens, true}},
    .gguf = {.why_not = "its attention over shared keys and its residual streams in one are not written yet"},
};

}  // namespace fewbit
