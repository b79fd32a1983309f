// DeepSeek V2, V3 and V3.2, GLM-5, and what is built like them (Kimi K2 is V3 by its class name): latent attention, a
// few dense layers, then experts whose router knows groups. V3.2 and GLM-5 choose keys by an indexer. The layer behind
// the last one (MTP) is not part of the model and travels as it is.
#include <fmt/format.h>

#include "src/model/archs/latent.h"

namespace fewbit {
namespace {

// What a family has where its config does not say: the defaults of transformers.
struct Defaults {
  int64_t first_sparse, groups, best_groups, shared;
  double scaling;
};

// The block with experts in place of its MLP.
std::vector<BlockOp> with_experts(const ConfigView& c, const std::vector<BlockOp>& dense, bool renormalise,
                                  const Defaults& d) {
  const int64_t width = size_key(c, "moe_intermediate_size");
  std::vector<BlockOp> block =
      moe_block(c, dense, {"mlp.gate", "mlp.experts.", "gate_proj", "up_proj", "down_proj"}, width, renormalise);
  moe_of(block).scaling = static_cast<float>(c.f64("routed_scaling_factor", d.scaling));
  if (const int64_t shared = c.i64("n_shared_experts", d.shared); shared > 0)
    add_shared_expert(block, "mlp.shared_experts.", shared * width, "");
  return block;
}

// Of V3 and later: logistic scores, a correction for the choice alone, groups judged by their two best.
std::vector<BlockOp> v3_experts(const ConfigView& c, const std::vector<BlockOp>& dense, const Defaults& d) {
  c.must_equal("scoring_func", "sigmoid");
  c.must_equal("topk_method", "noaux_tc");
  std::vector<BlockOp> block = with_experts(c, dense, c.flag("norm_topk_prob", true), d);
  Moe& moe = moe_of(block);
  moe.score = RouterScore::sigmoid;
  moe.correction = "mlp.gate.e_score_correction_bias";
  moe.correction_shape = {moe.experts};
  group_experts(c, moe, "n_group", d.groups, d.best_groups);
  return block;
}

// Softmax scores; with topk_method group_limited_greedy groups are judged by their best.
std::vector<BlockOp> v2_experts(const ConfigView& c, const std::vector<BlockOp>& dense, const Defaults& d) {
  c.must_equal("scoring_func", "softmax");
  const bool renormalise = c.flag("norm_topk_prob", false);
  std::vector<BlockOp> block = with_experts(c, dense, renormalise, d);
  Moe& moe = moe_of(block);
  if (renormalise && moe.scaling != 1)  // the published code and transformers read that differently
    fail(ErrorKind::unsupported,
         c.where() + ": routed_scaling_factor: only 1 is supported where norm_topk_prob is true");
  moe.judges = 1;
  const std::string method = c.str("topk_method", "greedy");
  if (method == "group_limited_greedy")
    group_experts(c, moe, "n_group", d.groups, d.best_groups);
  else if (method != "greedy")
    fail(ErrorKind::unsupported,
         fmt::format("{}: topk_method: found \"{}\"; supported: greedy, group_limited_greedy", c.where(), method));
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

using Experts = std::vector<BlockOp> (*)(const ConfigView&, const std::vector<BlockOp>&, const Defaults&);

ModelSpec deepseek_spec(const ConfigView& c, const std::vector<Sight>& sight, bool index_neighbours, Experts experts,
                        const Defaults& d) {
  const DecoderSizes s = decoder_sizes(c);
  const std::vector<bool> sparse = layers_with_experts(c, s, d.first_sparse);
  std::vector<std::vector<BlockOp>> variants;  // of all, own, shared: dense, with experts
  std::vector<int> first(3, -1), variant_of_layer;
  for (size_t i = 0; i < sparse.size(); ++i) {
    int& at = first[static_cast<size_t>(sight[i])];
    if (at < 0) {
      at = static_cast<int>(variants.size());
      variants.push_back(latent_block(c, s, {.sight = sight[i], .index_neighbours = index_neighbours}));
      variants.push_back(experts(c, variants.back(), d));
    }
    variant_of_layer.push_back(at + (sparse[i] ? 1 : 0));
  }
  return decoder_spec(c, s, variants, variant_of_layer, std::vector<int64_t>(sparse.size(), 0));
}

std::vector<Sight> all_keys(const ConfigView& c) {
  return std::vector<Sight>(static_cast<size_t>(decoder_sizes(c).layers), Sight::all);
}

constexpr Defaults kV2{.first_sparse = 0, .groups = 1, .best_groups = 1, .shared = 0, .scaling = 1},
    kV3{.first_sparse = 3, .groups = 8, .best_groups = 4, .shared = 1, .scaling = 2.5},
    kGlm5{.first_sparse = 3, .groups = 1, .best_groups = 1, .shared = 1, .scaling = 2.5};

}  // namespace

ModelSpec arch_deepseek_v2(const ConfigView& c) { return deepseek_spec(c, all_keys(c), false, v2_experts, kV2); }
ModelSpec arch_deepseek_v3(const ConfigView& c) { return deepseek_spec(c, all_keys(c), false, v3_experts, kV3); }

ModelSpec arch_deepseek_v32(const ConfigView& c) {
  return deepseek_spec(c, sights(c, decoder_sizes(c)), c.flag("indexer_rope_interleave", false), v3_experts, kV3);
}

ModelSpec arch_glm_moe_dsa(const ConfigView& c) {
  return deepseek_spec(c, sights(c, decoder_sizes(c)), c.flag("indexer_rope_interleave", true), v3_experts, kGlm5);
}

}  // namespace fewbit
