#pragma once
// column_tiles(): how the loops over columns cut a matrix into tiles of at most 128 columns. A group either lies inside
// one tile or begins at the start of one.
#include <algorithm>
#include <cstdint>
#include <vector>

namespace fewbit {

// Four columns for each lane of a warp; a tile of the factor, 128 x 128 f32, is 64 KiB of shared memory.
inline constexpr int64_t kTileCols = 128;

// Columns whose residual one product brings up to date; tiles inside such a strip are brought up to date from the strip
// alone. Eight tiles make the wide product worth its launch, and the narrow ones small.
inline constexpr int64_t kStripCols = 1024;

struct ColumnTile {
  int64_t begin = 0, end = 0;
  int64_t size() const { return end - begin; }
};

// Tiles of `in` columns in groups of `group`; 0: groups do not matter (fixed grids). Groups whose size is no multiple
// of 4 have tiles of their own, so that inside a tile a group begins at a lane's first column.
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
