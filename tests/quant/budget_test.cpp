#include "src/quant/search/budget.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>

#include "src/core/rng.h"

namespace fewbit {
namespace {

using Units = std::vector<std::vector<PricedChoice>>;

int64_t bytes_of(const Units& units, const std::vector<size_t>& chosen) {
  int64_t sum = 0;
  for (size_t u = 0; u < units.size(); ++u) sum += units[u][chosen[u]].bytes;
  return sum;
}

double cost_of(const Units& units, const std::vector<size_t>& chosen) {
  double sum = 0;
  for (size_t u = 0; u < units.size(); ++u) sum += units[u][chosen[u]].cost;
  return sum;
}

// Tries everything.
double least_cost(const Units& units, int64_t budget) {
  double best = 1e300;
  std::vector<size_t> chosen(units.size());
  const std::function<void(size_t)> next = [&](size_t u) {
    if (u == units.size()) {
      if (bytes_of(units, chosen) <= budget) best = std::min(best, cost_of(units, chosen));
      return;
    }
    for (chosen[u] = 0; chosen[u] < units[u].size(); ++chosen[u]) next(u + 1);
  };
  next(0);
  return best;
}

TEST(Budget, FindsWhatTryingEverythingFinds) {
  Rng rng(7);
  for (int round = 0; round < 50; ++round) {
    Units units(5);
    int64_t low = 0, high = 0;
    for (auto& unit : units) {
      for (int i = 0; i < 4; ++i)
        unit.push_back({static_cast<int64_t>(rng.below(1000)) + 1, static_cast<double>(rng.below(1000))});
      const auto [a, b] =
          std::minmax_element(unit.begin(), unit.end(), [](const auto& x, const auto& y) { return x.bytes < y.bytes; });
      low += a->bytes;
      high += b->bytes;
    }
    const int64_t budget = low + static_cast<int64_t>(rng.below(static_cast<uint64_t>(high - low + 1)));
    const std::vector<size_t> chosen = choose_within(units, budget);
    ASSERT_EQ(chosen.size(), units.size());
    EXPECT_LE(bytes_of(units, chosen), budget);
    EXPECT_EQ(cost_of(units, chosen), least_cost(units, budget));
  }
}

TEST(Budget, IsEmptyWhereTheSmallestExceedIt) {
  EXPECT_TRUE(choose_within({{{10, 1}, {20, 0}}, {{10, 1}}}, 19).empty());
  EXPECT_EQ(choose_within({{{10, 1}, {20, 0}}, {{10, 1}}}, 20), (std::vector<size_t>{0, 0}));
  EXPECT_EQ(choose_within({{{10, 1}, {20, 0}}, {{10, 1}}}, 30), (std::vector<size_t>{1, 0}));
}

TEST(Budget, NeverExceedsItWhereBytesShareNoDivisor) {
  const int64_t large = int64_t{1} << 33;
  const Units units = {{{1, 9}, {large + 1, 1}}, {{3, 9}, {large + 7, 2}}, {{2, 9}, {large - 11, 3}}};
  const std::vector<size_t> chosen = choose_within(units, 2 * large + 1000000);
  EXPECT_LE(bytes_of(units, chosen), 2 * large + 1000000);
  EXPECT_EQ(chosen, (std::vector<size_t>{1, 1, 0}));
}

}  // namespace
}  // namespace fewbit
