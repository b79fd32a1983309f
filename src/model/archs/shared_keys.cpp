// Attention of all heads over one shared key that is the value too (DeepSeek V4), as data. Keys:
// configuration_deepseek_v4.py of transformers, and those of the published checkpoints.
#include "src/model/archs/shared_keys.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace fewbit {
namespace {

using S = Slot;

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
  int64_t q_rank = size_key(c, "q_lora_rank");

  RopeParams rope(const SharedKeyForm& form) const {
    const int64_t rot = size_key(c, "qk_rope_head_dim");
    return form.every > 0 ? c.rope_of_theta(rot, "compress_rope_theta", 160000, true)
                          : c.rope_of_theta(rot, "rope_theta", 10000, false);
  }
  // The key of a block of tokens, by the names below `at`.
  std::vector<BlockOp> compressor(const SharedKeyForm& f, const std::string& at, int64_t dim, Slot k, Slot gate,
                                  Slot out) const {
    const CompressKeys op{k, gate, out, at + "compressor", f.every, dim, f.chooses, last_turn(rope(f), dim), s.eps};
    return {Project{S::h, k, at + "compressor.wkv", op.width(), s.hidden},
            Project{S::h, gate, at + "compressor.wgate", op.width(), s.hidden}, op};
  }
  std::vector<BlockOp> indexer(const SharedKeyForm& f) const {
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
  std::vector<BlockOp> attention(const SharedKeyForm& f) const {
    const int64_t all = s.heads * s.head_dim, groups = size_key(c, "o_groups"), rank = size_key(c, "o_lora_rank");
    std::vector<BlockOp> ops = {
        read_streams_of(c, s, "hc_attn"),
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

}  // namespace

std::vector<SharedKeyForm> shared_key_forms(const ConfigView& c, const DecoderSizes& s) {
  constexpr const char *kSparse = "compressed_sparse_attention", *kHeavy = "heavily_compressed_attention";
  const std::vector<std::string> types = layer_types(c, s, {"sliding_attention", kSparse, kHeavy});
  std::vector<int64_t> ratios = c.i64_list("compress_ratios");
  if (types.empty() && std::ssize(ratios) < s.layers)  // a last entry may belong to the layer that predicts further
    fail(ErrorKind::checkpoint, fmt::format("{}: compress_ratios: expected {} entries, found {}; or give layer_types",
                                            c.where(), s.layers, ratios.size()));
  std::vector<SharedKeyForm> forms(static_cast<size_t>(s.layers));
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

ReadStreams read_streams_of(const ConfigView& c, const DecoderSizes& s, const std::string& name) {
  return {.in = S::x,
          .out = S::h,
          .mix = S::mix,
          .name = name,
          .streams = static_cast<int>(size_key(c, "hc_mult")),
          .hidden = s.hidden,
          .norm_eps = s.eps,
          .eps = static_cast<float>(c.f64("hc_eps", 1e-6)),
          .rounds = static_cast<int>(size_key(c, "hc_sinkhorn_iters", 20))};
}

std::vector<BlockOp> shared_key_block(const ConfigView& c, const DecoderSizes& s, const SharedKeyForm& form) {
  return Parts{c, s}.attention(form);
}

}  // namespace fewbit
