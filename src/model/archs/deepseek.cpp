// DeepSeek V2, V3 and V3.2, GLM-5, and what is built like them (Kimi K2 is V3 by its class name): latent attention, a
// few dense layers, then experts whose router knows groups. V3.2 and GLM-5 choose keys by an indexer. The layer behind
// the last one (MTP) is not part of the model and travels as it is.
#include <fmt/format.h>

#include <algorithm>

#include "src/model/archs/latent.h"

namespace fewbit {
namespace {

// The block with experts in place of its MLP.
std::vector<BlockOp> with_experts(const ConfigView& c, const std::vector<BlockOp>& dense, bool renormalise) {
  const int64_t width = size_key(c, "moe_intermediate_size");
  std::vector<BlockOp> block =
      moe_block(c, dense, {"mlp.gate", "mlp.experts.", "gate_proj", "up_proj", "down_proj"}, width, renormalise);
  moe_of(block).scaling = static_cast<float>(c.f64("routed_scaling_factor", 1));
  return block;
}

void add_shared(const ConfigView& c, std::vector<BlockOp>& block) {
  if (const int64_t shared = c.i64("n_shared_experts", 0); shared > 0)
    add_shared_expert(block, "mlp.shared_experts.", shared * size_key(c, "moe_intermediate_size"), "");
}

// Of V3 and later: logistic scores, a correction for the choice alone, groups judged by their two best.
std::vector<BlockOp> v3_experts(const ConfigView& c, const std::vector<BlockOp>& dense) {
  c.must_equal("scoring_func", "sigmoid");
  c.must_equal("topk_method", "noaux_tc");
  std::vector<BlockOp> block = with_experts(c, dense, c.flag("norm_topk_prob", true));
  Moe& moe = moe_of(block);
  moe.score = RouterScore::sigmoid;
  moe.correction = "mlp.gate.e_score_correction_bias";
  moe.correction_shape = {moe.experts};
  group_experts(c, moe, "n_group");
  add_shared(c, block);
  return block;
}

// Softmax scores; with topk_method group_limited_greedy groups are judged by their best.
std::vector<BlockOp> v2_experts(const ConfigView& c, const std::vector<BlockOp>& dense) {
  c.must_equal("scoring_func", "softmax");
  const bool renormalise = c.flag("norm_topk_prob", false);
  std::vector<BlockOp> block = with_experts(c, dense, renormalise);
  Moe& moe = moe_of(block);
  if (renormalise && moe.scaling != 1)  // the published code and transformers read that differently
    fail(ErrorKind::unsupported,
         c.where() + ": routed_scaling_factor: only 1 is supported where norm_topk_prob is true");
  moe.judges = 1;
  const std::string method = c.str("topk_method", "greedy");
  if (method == "group_limited_greedy")
    group_experts(c, moe, "n_group");
  else if (method != "greedy")
    fail(ErrorKind::unsupported,
         fmt::format("{}: topk_method: found \"{}\"; supported: greedy, group_limited_greedy", c.where(), method));
  add_shared(c, block);
  return block;
}

// What each layer looks at, by indexer_types or index_topk_pattern ("FSS…": full, shared); an indexer of its own where
// the config has neither.
std::vector<Sight> sights(const ConfigView& c, const DecoderSizes& s) {
  std::vector<std::string> types = c.str_list("indexer_types");
  std::string at = "indexer_types";
  if (types.empty() && c.has("index_topk_pattern")) {
    at = "index_topk_pattern";
    for (const char ch : c.str(at)) types.emplace_back(ch == 'F' ? "full" : ch == 'S' ? "shared" : std::string(1, ch));
  }
  if (types.empty()) {
    if (c.i64("index_topk_freq", 1) != 1)
      fail(ErrorKind::unsupported,
           c.where() + ": index_topk_freq: supported only beside indexer_types, which says what each layer does");
    return std::vector<Sight>(static_cast<size_t>(s.layers), Sight::own);
  }
  if (static_cast<int64_t>(types.size()) < s.layers)
    fail(ErrorKind::checkpoint,
         fmt::format("{}: {}: expected {} entries, found {}", c.where(), at, s.layers, types.size()));
  std::vector<Sight> out;
  for (int64_t i = 0; i < s.layers; ++i) {
    const std::string& type = types[static_cast<size_t>(i)];
    if ((type != "full" && type != "shared") || (type == "shared" && i == 0))
      fail(ErrorKind::unsupported,
           fmt::format("{}: {}[{}]: found \"{}\"; supported: full, and behind one shared", c.where(), at, i, type));
    out.push_back(type == "full" ? Sight::own : Sight::shared);
  }
  return out;
}

using Experts = std::vector<BlockOp> (*)(const ConfigView&, const std::vector<BlockOp>&);

ModelSpec deepseek_spec(const ConfigView& c, const std::vector<Sight>& sight, bool index_neighbours, Experts experts) {
  const DecoderSizes s = decoder_sizes(c);
  const std::vector<bool> sparse = layers_with_experts(c, s);
  std::vector<std::vector<BlockOp>> variants;  // of all, own, shared: dense, with experts
  std::vector<int> first(3, -1), variant_of_layer;
  for (size_t i = 0; i < sparse.size(); ++i) {
    int& at = first[static_cast<size_t>(sight[i])];
    if (at < 0) {
      at = static_cast<int>(variants.size());
      variants.push_back(latent_block(c, s, {.sight = sight[i], .index_neighbours = index_neighbours}));
      variants.push_back(experts(c, variants.back()));
    }
    variant_of_layer.push_back(at + (sparse[i] ? 1 : 0));
  }
  return decoder_spec(c, s, variants, variant_of_layer, std::vector<int64_t>(sparse.size(), 0));
}

}  // namespace

ModelSpec arch_deepseek_v2(const ConfigView& c) {
  const DecoderSizes s = decoder_sizes(c);
  return deepseek_spec(c, std::vector<Sight>(static_cast<size_t>(s.layers), Sight::all), false, v2_experts);
}

ModelSpec arch_deepseek_v3(const ConfigView& c) {
  const DecoderSizes s = decoder_sizes(c);
  return deepseek_spec(c, std::vector<Sight>(static_cast<size_t>(s.layers), Sight::all), false, v3_experts);
}

ModelSpec arch_deepseek_v32(const ConfigView& c) {
  return deepseek_spec(c, sights(c, decoder_sizes(c)), c.flag("indexer_rope_interleave", false), v3_experts);
}

ModelSpec arch_glm_moe_dsa(const ConfigView& c) {
  return deepseek_spec(c, sights(c, decoder_sizes(c)), c.flag("indexer_rope_interleave", true), v3_experts);
}

}  // namespace fewbit
