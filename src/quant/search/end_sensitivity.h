#pragma once
// What it costs the model to store its embedding or its head in this spec or that: the KL of each, measured. Internal
// to src/quant/search.
#include "src/quant/search/sensitivity.h"

namespace fewbit {

// cost[s] of unit.specs[s], in nats per token of the held-out windows. `base`: states behind the last block [tokens,
// width] of the model as it is, in the runner's dtype. An embedding is rounded to the nearest, as a plan has it; a head
// by quick GPTQ on the states of the held-out windows.
std::vector<double> end_costs(Exec&, const Checkpoint&, Runner&, const UnitSpecs&, const Windows& held_out,
                              ConstTensorView base, uint64_t seed);

}  // namespace fewbit
