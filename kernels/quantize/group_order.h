#pragma once
// GroupOrder: the columns of a matrix brought together by group, on the host, for the refit of scales.
#include <algorithm>
#include <cstdint>
#include <numeric>
#include <vector>

namespace fewbit {

// Position k holds column order[k]; group g has the positions [start[g], start[g + 1]). Columns of a group keep their
// order.
struct GroupOrder {
  std::vector<int32_t> order, start;

  // group_at(column) says the group of each of n columns.
  template <class F>
  GroupOrder(int64_t n, int64_t groups, const F& group_at)
      : order(static_cast<size_t>(n)), start(static_cast<size_t>(groups + 1), 0) {
    std::iota(order.begin(), order.end(), 0);
    const auto before = [&](int32_t x, int32_t y) { return group_at(x) < group_at(y); };
    // Consecutive groups are there already: a device waits meanwhile.
    if (!std::is_sorted(order.begin(), order.end(), before)) std::stable_sort(order.begin(), order.end(), before);
    for (const int32_t column : order) ++start[static_cast<size_t>(group_at(column)) + 1];
    std::partial_sum(start.begin(), start.end(), start.begin());
  }
  int64_t groups() const { return static_cast<int64_t>(start.size()) - 1; }
  int64_t column(int64_t position) const { return order[static_cast<size_t>(position)]; }
  int64_t begin(int64_t g) const { return start[static_cast<size_t>(g)]; }
  int64_t end(int64_t g) const { return start[static_cast<size_t>(g + 1)]; }
};

}  // namespace fewbit
