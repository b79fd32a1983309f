#pragma once
// The order in which GPTQ visits columns, and the way back to checkpoint order.
#include <cstdint>
#include <span>
#include <vector>

#include "src/quant/method.h"

namespace fewbit {

// Position k of the processing order holds checkpoint column column[k]. A group is `group` consecutive positions.
struct ColumnOrder {
  std::vector<int32_t> column{};    // empty: checkpoint order
  std::vector<int32_t> position{};  // its inverse
  std::vector<int32_t> grid_of{};   // static_groups: group of each position on grids fixed beforehand
  std::vector<int32_t> group_at{};  // gar: group of the checkpoint -> group of the processing order
  std::vector<int32_t> group_of{};  // full: group of each checkpoint column; else empty (consecutive)
  bool natural() const { return column.empty(); }
};

// `importance` is the diagonal of H. Sorting is stable and falls.
//   static_groups: all columns sorted; grids belong to the checkpoint's groups
//   gar: columns sorted inside each group, groups by their largest; a last group that is not full stays last
//   full: all columns sorted; groups follow the processing order
ColumnOrder make_order(ActOrder act, std::span<const float> importance, int64_t group);

}  // namespace fewbit
