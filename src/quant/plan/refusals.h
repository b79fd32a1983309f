#pragma once
// Refusals as people read them: those of one reason together.
#include <string>
#include <vector>

#include "src/quant/plan/plan.h"

namespace fewbit {

// A line for each reason, in the order of the refusals: "NAME: REASON", or "FIRST and 27 more, to LAST: REASON".
std::vector<std::string> grouped_refusals(const std::vector<Refusal>&);

}  // namespace fewbit
