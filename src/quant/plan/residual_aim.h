#pragma once
// Which linears of a plan make some of the residual stream's error good (InputStats::residual).
#include <optional>

#include "src/quant/plan/plan.h"

namespace fewbit {

// The factor with which the outputs of the one linear of op `at` are added to the residual stream, where its recipe
// aims at that stream's error; nothing where it does not, or where the outputs go elsewhere.
std::optional<float> makes_good(const QuantPlan&, const ModelSpec&, int64_t layer, size_t at);
// Features of the errors that are summed at the input of that op; 0 where none are.
int64_t error_features(const QuantPlan&, const ModelSpec&, int64_t layer, size_t at);
// Bytes of their sums; and of their rows, of `elem` bytes a value: a chunk's, those of one that another process brings,
// and a piece of them.
struct ErrorBytes {
  int64_t sums = 0, rows = 0;
};
ErrorBytes error_bytes(int64_t features, int64_t in, Device::Kind, int64_t elem, int64_t chunk, int ranks);

}  // namespace fewbit
