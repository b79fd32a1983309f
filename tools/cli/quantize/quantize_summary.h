#pragma once
// What `quantize` says when it is done.
#include <string>

#include "src/quant/output/report.h"

namespace fewbit::cli {

// Several lines: rungs of the damping ladder, experts that starved, losses, memory beside what was planned, time.
std::string summary_of(const QuantReport&);

}  // namespace fewbit::cli
