#pragma once
// Sizes of models that a config may name: what is made of them is made before a tensor of the files is looked at.
#include <cstdint>

namespace fewbit {

// The deepest published models have some 130 layers; each is a list of ops and of names of tensors.
inline constexpr int64_t kMostLayers = 4096;
// The widest published heads have 576 features; every pair of them has a frequency.
inline constexpr int64_t kWidestHead = 65536;

}  // namespace fewbit
