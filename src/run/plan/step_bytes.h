#pragma once
// What a pass reads, in bytes: the one step model, of `runner bench` (from the tensors that it loaded) and of `runner
// plan` (from shapes).
#include <functional>
#include <map>
#include <string>

#include "src/run/block.h"

namespace fewbit {

// Of a block on a device.
struct BlockBytes {
  std::map<std::string, int64_t> linears{};  // by name in the block, with their biases
  int64_t small = 0;                         // norms, routers and the rest of BlockWeights::vectors
  int64_t table = 0, table_rows = 0;         // of them the table of a TokenInput, of which a pass reads rows
};
BlockBytes bytes_of(const std::vector<BlockOp>&, const BlockWeights&);
// The same of a rank without weights; `linear` says the bytes of its share of one, named as in the block.
using LinearBytes = std::function<int64_t(const LinearDef&, const LinearShare&)>;
BlockBytes block_bytes(const ModelSpec& whole, int64_t layer, DType compute, RankPart, const LinearBytes& linear);
// All of it; and what one pass over `tokens` tokens reads: of a mixture of experts, those of as many experts as the
// tokens can be sent to. `block`: the ops of the rank.
int64_t held_bytes(const BlockBytes&);
int64_t weight_bytes(const std::vector<BlockOp>& block, const BlockBytes&, int64_t tokens);

// What one sequence of `context` positions keeps in layers [begin, end): keys and values, of windows and chunks only
// what is in sight (KIVI's form cuts no windows, and has its recent rows besides), latents, states. `read`: what a step
// reads of it, where layers may look at the keys of others.
struct LayerRange {
  int64_t begin = 0, end = 0;
};
int64_t cache_bytes(const ModelSpec&, LayerRange, KvType, DType compute, int64_t context, bool read);
// Bytes of one more position of one sequence in all layers, within all windows.
int64_t position_bytes(const ModelSpec&, KvType, DType compute);
// What Engine allocates for it: windows are not cut there.
int64_t contiguous_cache_bytes(const ModelSpec&, LayerRange, KvType, DType compute, int64_t capacity);

// Features of every slot of a block's activations, the widest of all kinds; 0 = not used. x is the caller's.
std::array<int64_t, kSlots> widest_slots(const ModelSpec&);
// What Engine holds of activations: the slots of a prefill of `chunk` tokens and of a step, states, logits.
int64_t activation_bytes(const ModelSpec&, DType compute, int64_t batch, int64_t chunk);

}  // namespace fewbit
