#include "src/quant/methods/column_order.h"

#include <algorithm>
#include <numeric>

namespace fewbit {
namespace {

std::vector<int32_t> iota(int64_t n) {
  std::vector<int32_t> v(static_cast<size_t>(n));
  std::iota(v.begin(), v.end(), 0);
  return v;
}

std::vector<int32_t> inverse(const std::vector<int32_t>& p) {
  std::vector<int32_t> q(p.size());
  for (size_t k = 0; k < p.size(); ++k) q[static_cast<size_t>(p[k])] = static_cast<int32_t>(k);
  return q;
}

// Group-aware reordering: sorts inside groups, then whole groups.
void order_groups(ColumnOrder& order, std::span<const float> importance, int64_t group) {
  const int64_t in = static_cast<int64_t>(importance.size()), groups = (in + group - 1) / group, full = in / group;
  const auto falls = [&](int32_t a, int32_t b) {
    return importance[static_cast<size_t>(a)] > importance[static_cast<size_t>(b)];
  };
  std::vector<int32_t> sorted = iota(in), rank = iota(groups);
  for (int64_t g = 0; g < groups; ++g)
    std::stable_sort(sorted.begin() + g * group, sorted.begin() + std::min(in, (g + 1) * group), falls);
  std::stable_sort(rank.begin(), rank.begin() + full, [&](int32_t a, int32_t b) {
    return falls(sorted[static_cast<size_t>(a * group)], sorted[static_cast<size_t>(b * group)]);
  });
  for (const int32_t g : rank)
    order.column.insert(order.column.end(), sorted.begin() + g * group, sorted.begin() + std::min(in, (g + 1) * group));
  order.group_at = inverse(rank);
}

}  // namespace

ColumnOrder make_order(ActOrder act, std::span<const float> importance, int64_t group) {
  ColumnOrder order;
  if (act == ActOrder::off) return order;
  const int64_t in = static_cast<int64_t>(importance.size());
  if (act == ActOrder::gar) {
    order_groups(order, importance, group);
  } else {
    order.column = iota(in);
    std::stable_sort(order.column.begin(), order.column.end(), [&](int32_t a, int32_t b) {
      return importance[static_cast<size_t>(a)] > importance[static_cast<size_t>(b)];
    });
  }
  order.position = inverse(order.column);
  if (act == ActOrder::static_groups)
    for (const int32_t c : order.column) order.grid_of.push_back(static_cast<int32_t>(c / group));
  if (act == ActOrder::full && group < in)
    for (const int32_t p : order.position) order.group_of.push_back(static_cast<int32_t>(p / group));
  return order;
}

}  // namespace fewbit
