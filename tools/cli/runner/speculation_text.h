#pragma once
// What came of `--speculate`: lines for people, and the object of --json.
#include <string>

#include "src/run/speculate/speculation.h"

namespace fewbit::cli {

std::string text_of(const SpeculationReport&);
std::string json_of(const SpeculationReport&);

}  // namespace fewbit::cli
