#pragma once
// What the families of latent attention share: DeepSeek V2 and later, GLM-5, Kimi.
#include "src/model/archs/decoder.h"

namespace fewbit {

enum class Sight : uint8_t {
  all,     // every query sees all keys before it
  own,     // an indexer chooses the keys
  shared,  // the keys that the layer before looked at
};
struct LatentForm {
  bool turns = true;  // false: no rotation at all
  Sight sight = Sight::all;
  bool index_neighbours = false;  // how the indexer's rotation pairs features
};

// x += o(latent attention of norm(x)), by the names of DeepSeek below "self_attn.".
std::vector<BlockOp> latent_attention_block(const ConfigView&, const DecoderSizes&, const LatentForm&);
// The same with x += down(silu(gate) * up of norm(x)) behind.
std::vector<BlockOp> latent_block(const ConfigView&, const DecoderSizes&, const LatentForm&);
// What a family has where its config does not say: the defaults of transformers.
struct LatentDefaults {
  int64_t first_sparse, groups, best_groups, shared;
  double scaling;
};
// The block with experts in place of its MLP, by DeepSeek's names.
std::vector<BlockOp> latent_experts(const ConfigView&, const std::vector<BlockOp>& dense, bool renormalise,
                                    const LatentDefaults&);
// The same as DeepSeek V3 has them: logistic scores, a correction for the choice
// alone, groups judged by their two best.
std::vector<BlockOp> v3_experts(const ConfigView&, const std::vector<BlockOp>& dense, const LatentDefaults&);
using LatentExperts = std::vector<BlockOp> (*)(const ConfigView&, const std::vector<BlockOp>&, const LatentDefaults&);
// Latent attention in every layer, which looks at what `sight` [layers] says; dense layers, then experts.
ModelSpec latent_spec(const ConfigView&, const std::vector<Sight>& sight, bool index_neighbours, LatentExperts,
                      const LatentDefaults&);

// Which layers have experts: from first_k_dense_replace (`first` where the config does not say) on every
// moe_layer_freq-th, or as mlp_layer_types says.
std::vector<bool> layers_with_experts(const ConfigView&, const DecoderSizes&, int64_t first);

// Groups of experts by the config's keys `key` and topk_group, with the family's values where it does not say.
// Error{checkpoint} where they do not fit.
void group_experts(const ConfigView&, Moe&, const std::string& key, int64_t groups = 1, int64_t best = 1);

// What files say of these experts.
constexpr GgufExperts gguf_experts(RouterScore score) {
  return {.score = score,
          .score_key = true,
          .norm_key = true,
          .leading_dense = true,
          .width_key = true,
          .count = "n_routed_experts",
          .width = "moe_intermediate_size",
          .renormalised = "norm_topk_prob",
          .scaling = "routed_scaling_factor",
          .dense_layers = "first_k_dense_replace",
          .shared_count = "n_shared_experts"};
}

}  // namespace fewbit
