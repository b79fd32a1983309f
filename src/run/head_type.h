#pragma once
// What the head is multiplied as, whatever the checkpoint has stored.
#include <cstdint>
#include <string_view>

namespace fewbit {

enum class HeadType : uint8_t {
  stored,  // as the checkpoint has it
  dense,   // the compute type; dequantized where it is packed
  fp8,     // E4M3 with a scale per output, the input not rounded
  int4,    // groups of 128, symmetric
};
std::string_view name_of(HeadType);         // "stored", "bf16", "fp8", "int4"
HeadType head_type_from(std::string_view);  // Error{usage} listing the names

}  // namespace fewbit
