#pragma once
// What a run takes at its peak, and the refusal of a machine that has less.
#include <string>
#include <vector>

#include "src/quant/plan/plan.h"

namespace fewbit {

// Where most is held, of the device or of the host.
PhaseMemory largest(const std::vector<PhaseMemory>&, bool device);
// Without a GPU all memory is the host's.
void on_one_machine(std::vector<PhaseMemory>&);
// A line where the limits are smaller than the least that the plan needs; "" otherwise.
std::string memory_refusal(const MemoryPlan&, const PlanOptions&);

}  // namespace fewbit
