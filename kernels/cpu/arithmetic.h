#pragma once
#include <string>

namespace fewbit {

// What the last bits of products on this CPU depend on: "OpenBLAS SkylakeX".
std::string cpu_arithmetic();

}  // namespace fewbit
