#pragma once
// What the names and types of tensors alone tell of a file: how its linears are packed, without any config.
#include <cstdint>
#include <map>
#include <string>

#include "formats/container.h"

namespace fewbit {

struct Recognised {
  std::map<std::string, int64_t> packed;  // "gptq or gptq_v2" -> modules
  int64_t dense = 0;                      // modules with a matrix of floats
  int64_t unknown = 0;                    // modules whose tensors fit no packing, nor a dense weight
};

Recognised recognise(const CheckpointIndex& index);

}  // namespace fewbit
