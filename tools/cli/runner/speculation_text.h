#pragma once
// What came of `--speculate`: lines for people, and the object of --json.
#include <string>

#include "src/run/speculate/speculation.h"

namespace fewbit::cli {

std::string text_of(const SpeculationReport&);
std::string json_of(const SpeculationReport&);
std::string text_of(const Acceptance&);  // of at least one draft; part of a line
std::string json_of(const Acceptance&);

}  // namespace fewbit::cli
