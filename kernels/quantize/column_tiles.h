#pragma once
// How the column loops cut a matrix into tiles: at most 128 columns, and a group either lies inside one tile
// or begins at the start of one.
#include <algorithm>
#include <cstdint>
#include <vector>

namespace fewbit {

inline constexpr int64_t kTileCols = 128;

struct ColumnTile {
  int64_t begin = 0, end = 0;
  int64_t size() const { return end - begin; }
};

// group = 0: groups do not matter (fixed grids).
inline std::vector<ColumnTile> column_tiles(int64_t in, int64_t group) {
  std::vector<ColumnTile> tiles;
  const int64_t span = group == 0                             ? kTileCols
                       : group >= kTileCols || group % 4 != 0 ? group
                                                              : kTileCols / group * group;
  for (int64_t s = 0; s < in; s += span)
    for (int64_t b = s; b < std::min(in, s + span); b += kTileCols)
      tiles.push_back({b, std::min({in, s + span, b + kTileCols})});
  return tiles;
}

}  // namespace fewbit
