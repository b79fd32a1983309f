#pragma once
// Store or compute again: what lives in front of a stop of the calibration is kept where writing and reading it takes
// clearly less time, by measured rates, than computing it once more; in doubt what products or attention made is kept.
// The bytes of OUT do not depend on it.
#include "src/quant/plan/plan.h"

namespace fewbit {

struct Rates;

// plan.memory with every stop decided by its seconds. States go where there is room, the disk last, as StateStore has
// it.
MemoryPlan decide_stops(const Checkpoint&, const QuantPlan&, const PlanOptions&, const Rates&);

}  // namespace fewbit
