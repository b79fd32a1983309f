#pragma once
// Seeing a pass over the model op by op, as it is issued: for traces.
#include <functional>
#include <span>
#include <string_view>

#include "src/run/block.h"

namespace fewbit {

// What was just issued: ops of a block (one, or two that run as one), or something outside the blocks.
struct PassStep {
  std::string_view what{};  // "embedding", "layers", "final norm, head", "choice"; "" for ops of a block
  int64_t layer = -1;       // of the ops
  std::span<const BlockOp> ops{};
  bool begins = false;  // nothing yet: a chunk of the pass is about to begin
};
using PassWatch = std::function<void(const PassStep&)>;

// run_block() with a call behind every launch.
void run_block(Exec&, const std::vector<BlockOp>&, const BlockWeights&, const RopeTables&, const TokenLayout&,
               Activations&, const std::function<void(std::span<const BlockOp>)>& watch);

}  // namespace fewbit
