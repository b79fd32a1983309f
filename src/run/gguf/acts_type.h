#pragma once
// What packed integer weights are multiplied with, where a checkpoint leaves it open.
#include <cstdint>
#include <string_view>

namespace fewbit {

enum class ActsType : uint8_t {
  bf16,  // inputs as they are
  int8,  // rounded per token and 32 columns (kernels/products/blocks/block_int8.h), on the CPU
};
std::string_view name_of(ActsType);         // "bf16", "int8"
ActsType acts_type_from(std::string_view);  // Error{usage} listing the names

}  // namespace fewbit
