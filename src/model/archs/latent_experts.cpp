// Layers of latent attention with experts behind some of them.
#include <fmt/format.h>

#include "src/model/archs/latent.h"

namespace fewbit {

std::vector<bool> layers_with_experts(const ConfigView& c, const DecoderSizes& s, int64_t first) {
  first = c.i64("first_k_dense_replace", first);
  const int64_t every = size_key(c, "moe_layer_freq", 1);
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

std::vector<BlockOp> latent_experts(const ConfigView& c, const std::vector<BlockOp>& dense, bool renormalise,
                                    const LatentDefaults& d) {
  const int64_t width = size_key(c, "moe_intermediate_size");
  std::vector<BlockOp> block =
      moe_block(c, dense, {"mlp.gate", "mlp.experts.", "gate_proj", "up_proj", "down_proj"}, width, renormalise);
  experts_of(block).scaling = static_cast<float>(c.f64("routed_scaling_factor", d.scaling));
  if (const int64_t shared = c.i64("n_shared_experts", d.shared); shared > 0)
    add_shared_expert(block, "mlp.shared_experts.", shared * width, "");
  return block;
}

std::vector<BlockOp> v3_experts(const ConfigView& c, const std::vector<BlockOp>& dense, const LatentDefaults& d) {
  c.must_equal("scoring_func", "sigmoid");
  c.must_equal("topk_method", "noaux_tc");
  std::vector<BlockOp> block = latent_experts(c, dense, c.flag("norm_topk_prob", true), d);
  Moe& moe = experts_of(block);
  moe.score = RouterScore::sigmoid;
  correct(moe, "mlp.gate.e_score_correction_bias", {moe.experts});
  group_experts(c, moe, "n_group", d.groups, d.best_groups);
  return block;
}

ModelSpec latent_spec(const ConfigView& c, const std::vector<Sight>& sight, bool index_neighbours,
                      LatentExperts experts, const LatentDefaults& d) {
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
  return decoder_spec(c, s, variants, variant_of_layer);
}

}  // namespace fewbit
