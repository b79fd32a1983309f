#pragma once
// method_bytes(): what quantizing one linear takes besides the statistics of its input, for plans.
#include "src/quant/plan/plan.h"

namespace fewbit {

// The method at work and then the measure of its result, which has the weight, its new values, their difference from
// zero and the codes in two places. The factor stays in the cache of the statistics. `sibling`: a linear before this
// one left the factor of their input.
int64_t method_bytes(Device::Kind, const PlannedLinear&, bool sibling = false);

}  // namespace fewbit
