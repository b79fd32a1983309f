#pragma once
// Makes one choice for every unit so that the summed cost is least while the summed bytes stay within a limit (the
// multiple-choice knapsack problem).
#include <cstddef>
#include <cstdint>
#include <vector>

namespace fewbit {

struct PricedChoice {
  int64_t bytes = 0;
  double cost = 0;
};

// The index of the choice of each unit. Exact when the bytes have a common divisor of at least budget / 2^18;
// otherwise bytes are rounded up to such granules, so the limit is never exceeded but may be missed by a few granules.
// Ties go to the earlier choice. Empty when even the smallest choices exceed the budget.
std::vector<std::size_t> choose_within(const std::vector<std::vector<PricedChoice>>& units, int64_t budget_bytes);

}  // namespace fewbit
