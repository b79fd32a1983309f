#pragma once
// Store or compute again: what lives in front of a stop of the calibration is kept where writing and reading it takes
// clearly less time, by measured rates, than computing it once more; in doubt what products or attention made is kept.
// The bytes of OUT do not depend on it.
#include <set>
#include <vector>

#include "src/quant/plan/plan.h"

namespace fewbit {

struct Rates;

// plan.memory with every stop decided by its seconds. States go where there is room, the disk last, as StateStore has
// it.
MemoryPlan decide_stops(const Checkpoint&, const QuantPlan&, const PlanOptions&, const Rates&);

// By kind of block, the stops whose inputs are costly to compute again: products or attention lie behind the last cut.
std::vector<std::set<size_t>> costly_stops(const ModelSpec&);

}  // namespace fewbit
