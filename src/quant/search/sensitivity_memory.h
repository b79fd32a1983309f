#pragma once
// The memory of the measurement that `auto` begins with, before anything is computed.
#include "src/quant/plan/memory_plan.h"
#include "src/quant/search/sensitivity.h"

namespace fewbit {

// Windows that the measurement takes of a draw: for the statistics the first, for the distances the last.
struct MeasuredWindows {
  int64_t calibration = 0, held_out = 0;
};
MeasuredWindows measured_windows(int64_t drawn);

// The least that measuring these linears takes, in windows of `length` tokens; where the calibration's states may lie
// within the limits (`room`), and the refusal of limits that are smaller than the least.
MemoryPlan sensitivity_memory(const Checkpoint&, const std::vector<TiedLinears>&, MeasuredWindows, int64_t length,
                              DType, Device::Kind, const MemoryLimits&);

}  // namespace fewbit
