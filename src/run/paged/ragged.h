#pragma once
// Ops of a block over rows of sequences of different lengths, whose cache lies in pages.
#include <span>

#include "kernels/decode/append_attention.h"
#include "src/run/block.h"

namespace fewbit {

// How the rows of a pass belong to sequences, and what one layer keeps of these.
struct RaggedLayout {
  PagedRows rows;                                   // with the tables of the layer's group
  const KvCache* cache = nullptr;                   // pages; null where the layer keeps no keys and values
  const LatentStorage* latents = nullptr;           // pages [pages, kPagePositions, features], or empty tensors
  std::span<const RecurrentState* const> states{};  // of each run: of its sequence alone
  // [1, longest, features] each, for the latents of one sequence; where they lie in one piece, `latents` itself
  LatentStorage* room = nullptr;
};

// Ops that see one sequence at a time (recurrent ones, attention over latents or shared keys) run by run, and by rows
// where a product over several rows of a run would change their bits. False, and nothing done, for all other ops, and
// where the layout is not ragged.
bool goes_by_sequence(const BlockOp&);
bool run_by_sequence(Exec&, const BlockOp&, const BlockWeights&, const RopeTables&, const TokenLayout&, Activations&);
// New keys and values to the cache that the layout has; attention over pages; append_attention() over the layout's
// cache.
void append_keys(Exec&, ConstTensorView k, ConstTensorView v, const TokenLayout&);
void attend_pages(Exec&, ConstTensorView q, const RaggedLayout&, const AttentionArgs&, TensorView out);
void append_and_attend(Exec&, TensorView q, ConstTensorView k, ConstTensorView v, const HeadNorms&, const RopeTable&,
                       const TokenLayout&, const AttentionArgs&, TensorView out);

// Room for the latents of one sequence of up to `longest` positions in any layer of the model.
LatentStorage alloc_latent_room(Exec&, const ModelSpec&, KvType, DType compute, int64_t longest);

}  // namespace fewbit
