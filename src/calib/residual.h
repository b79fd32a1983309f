#pragma once
// Linears whose outputs are added to the residual stream. What that stream has gathered of errors where they are added
// is known when they are coded, and they can make some of it good: their targets are moved by what their inputs tell of
// it (InputStats::residual).
#include <optional>
#include <vector>

#include "src/model/block_ops.h"

namespace fewbit {

// The factor with which what the only linear of op `at` gives is added to the residual stream as it stands in front of
// the op; nothing where the op is none of one linear, or where an op between changes the one or the other.
std::optional<float> residual_factor(const std::vector<BlockOp>& ops, size_t at);

}  // namespace fewbit
