#pragma once
// All layers of a decode step in one launch (kernels/decode_layers.h), where the model's op list has that form.
#include <optional>

#include "kernels/decode_layers.h"
#include "src/run/block.h"

namespace fewbit {

// The stack over the blocks' weights and one sequence's caches (one each per layer), which must outlive it. Nothing where
// the op list or the device asks for the ops one by one; `why` then says the reason.
std::optional<DecodeStack> decode_stack(Exec&, const ModelSpec&, const std::vector<BlockWeights>&, const RopeTables&,
                                        const std::vector<KvCache>&, bool turned_keys, std::string* why);

}  // namespace fewbit
