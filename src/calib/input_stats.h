#pragma once
// InputStats: what calibration saw at the input of one Linears op. Raw sums and counts, never averages, so
// that they merge by addition.
#include <cstdint>
#include <string>

#include "kernels/exec.h"

namespace fewbit {

enum class Needs : uint8_t {
  nothing = 0,
  gram = 1,   // sum over tokens of x x^T of the quantized stream
  cross = 2,  // sum over tokens of x_full x_quantized^T; with gram it gives the shift of targets
};
constexpr Needs operator|(Needs a, Needs b) {
  return static_cast<Needs>(static_cast<int>(a) | static_cast<int>(b));
}
constexpr bool has(Needs set, Needs bit) { return (static_cast<int>(set) & static_cast<int>(bit)) != 0; }

// The factor R of the damped Gram matrix (kernels/factor.h). It belongs to the input, so linears that share
// an input share it; `key` says which column order and damping it was made for.
struct FactorCache {
  std::string key{};
  Tensor r{};  // [in, in] f32, in processing order
  bool ok = false;
};

struct InputStats {
  int64_t tokens = 0;            // of the sums
  int64_t borrowed = 0;          // of them lent by the layer to an expert that saw too few (experts.h)
  Tensor gram{};                 // [in, in] f32 on the device
  Tensor cross{};                // [in, in] f32; empty where not needed
  mutable FactorCache factor{};  // filled by the first method that needs it
};

}  // namespace fewbit
