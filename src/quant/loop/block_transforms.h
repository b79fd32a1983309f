#pragma once
// Applies the transforms of a plan to one block: shows them what calibration saw and takes back the rewritten weights.
#include "src/calib/chunk_share.h"
#include "src/calib/stream.h"
#include "src/quant/loop/block_f32.h"
#include "src/quant/loop/phases.h"
#include "src/quant/plan/plan.h"

namespace fewbit {

// Applies the plan's transforms to the block of `layer`: `weights` (dense, of the stream's compute dtype) are
// rewritten in place, and the f32 tensors behind them come back; empty where nothing takes part. `entering`
// holds the states in front of the block; they stay as they are. `store` has room for those of the tokens that
// transforms look at. The result depends on these arguments only, so a resumed run comes to the same weights. Ranks
// whose chunks of `entering` are theirs in turn make the statistics together, and then all search alike.
BlockF32 transform_block(StateStore& store, const Ranks&, const Checkpoint&, const QuantPlan&, int64_t layer,
                         const States& entering, const RopeTables&, BlockWeights& weights, Phases&);

}  // namespace fewbit
