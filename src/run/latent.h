#pragma once
// The ops of latent attention and of attention over shared keys in a pass, with what they keep from token to token and
// from block to block.
#include "src/run/block.h"

namespace fewbit {

// Chooses the keys of every query where there are more than the op takes; else leaves Activations::choice empty.
void run_key_choice(Exec&, const KeyChoice&, const TokenLayout&, const Activations&);
void run_shared_key_attention(Exec&, const SharedKeyAttention&, const BlockWeights&, const TokenLayout&,
                              const Activations&);
// A product whose outputs are made in groups from groups of the inputs.
void run_groups(Exec&, const Project&, const BlockWeights&, ConstTensorView in, TensorView out);
void run_latent_attention(Exec&, const LatentAttention&, const BlockWeights&, const TokenLayout&, const Activations&);
// Whether a pass takes the weights of kv_b into queries and outputs: what that linear would make is not needed then.
// Latents in E4M3 are always read from the cache, so that the first chunk of a prompt sees them as all later ones do.
inline bool absorbs_weights(const TokenLayout& l) {
  return l.ragged || (l.latents && (!l.from_zero || !l.latents->scales.empty()));
}
// Room for the codes of up to `rows` tokens on their way into a cache of E4M3, since a recorded step allocates nothing.
void make_latent_rooms(Exec&, const std::vector<BlockOp>&, BlockWeights&, int64_t rows);
// Whether `linears` is what a later op of the block takes the weights of.
bool is_absorbed(const Linears&, std::span<const BlockOp> later);

}  // namespace fewbit
