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
// Which layers have experts: from first_k_dense_replace on every moe_layer_freq-th, or as mlp_layer_types says.
std::vector<bool> layers_with_experts(const ConfigView&, const DecoderSizes&);

// The experts of a block.
Moe& moe_of(std::vector<BlockOp>& block);
// Groups of experts by the config's keys `key` and topk_group. Error{checkpoint} where they do not fit.
void group_experts(const ConfigView&, Moe&, const std::string& key);

}  // namespace fewbit
