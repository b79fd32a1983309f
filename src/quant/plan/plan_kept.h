#pragma once
// What of a model stays as it is stored without a word of the user, and why. Internal to src/quant.
#include "src/quant/plan/plan.h"

namespace fewbit {

// Why the family keeps a linear of the op list (src/model/family.h) unless a rule names it; "" where it does not.
std::string kept_by_family(const ModelSpec&, const NamedLinear&);

// Matrices outside of the plan's linears by their reason: routers and gates, and what is not part of the op list.
std::vector<KeptGroup> kept_of(const Checkpoint&, const QuantPlan&);

}  // namespace fewbit
