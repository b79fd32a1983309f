#include "src/quant/search/budget.h"

#include <algorithm>
#include <limits>
#include <numeric>

#include "src/core/error.h"

namespace fewbit {
namespace {

constexpr int64_t kMaxGranules = int64_t{1} << 18;

int64_t smallest(const std::vector<PricedChoice>& unit) {
  FEWBIT_ASSERT(!unit.empty() && unit.size() < 256);
  return std::min_element(unit.begin(), unit.end(),
                          [](const PricedChoice& a, const PricedChoice& b) { return a.bytes < b.bytes; })
      ->bytes;
}

// The bytes above each unit's smallest choice are counted in these.
int64_t granule_of(const std::vector<std::vector<PricedChoice>>& units, int64_t spare) {
  int64_t common = 0;
  for (const auto& unit : units)
    for (const PricedChoice& c : unit) common = std::gcd(common, c.bytes - smallest(unit));
  return std::max({common, (spare + kMaxGranules - 1) / kMaxGranules, int64_t{1}});
}

}  // namespace

std::vector<size_t> choose_within(const std::vector<std::vector<PricedChoice>>& units, int64_t budget_bytes) {
  int64_t spare = budget_bytes;
  for (const auto& unit : units) spare -= smallest(unit);
  if (spare < 0) return {};
  const int64_t granule = granule_of(units, spare);
  const auto room = static_cast<size_t>(spare / granule);
  // best[b]: least cost of the units so far with at most b granules; taken[u][b]: the choice of unit u behind it.
  constexpr double kNever = std::numeric_limits<double>::infinity();
  std::vector<double> best(room + 1, 0.0), next(room + 1);
  std::vector<std::vector<uint8_t>> taken(units.size(), std::vector<uint8_t>(room + 1));
  const auto granules = [&](size_t u, size_t i) {
    return static_cast<size_t>((units[u][i].bytes - smallest(units[u]) + granule - 1) / granule);
  };
  for (size_t u = 0; u < units.size(); ++u) {
    std::fill(next.begin(), next.end(), kNever);
    for (size_t i = 0; i < units[u].size(); ++i) {
      const size_t size = granules(u, i);
      for (size_t b = size; b <= room; ++b)
        if (const double cost = best[b - size] + units[u][i].cost; cost < next[b]) {
          next[b] = cost;
          taken[u][b] = static_cast<uint8_t>(i);
        }
    }
    best.swap(next);
  }
  std::vector<size_t> chosen(units.size());
  size_t left = room;
  for (size_t u = units.size(); u-- > 0;) {
    chosen[u] = taken[u][left];
    left -= granules(u, chosen[u]);
  }
  return chosen;
}

}  // namespace fewbit
