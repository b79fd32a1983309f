#include "kernels/quantize/tile_inverse.h"

#include "src/core/parallel.h"

namespace fewbit::cpu {

std::vector<float> invert_tiles(Mat<const float> r, const std::vector<ColumnTile>& tiles, int64_t most) {
  std::vector<float> inverse(tiles.size() * static_cast<size_t>(most * most), 0.f);
  parallel_for(static_cast<int64_t>(tiles.size()), 1, [&](int64_t begin, int64_t end) {
    std::vector<double> column(static_cast<size_t>(most));
    for (int64_t t = begin; t < end; ++t) {
      const int64_t b = tiles[static_cast<size_t>(t)].begin, n = tiles[static_cast<size_t>(t)].size();
      float* u = inverse.data() + t * most * most;
      for (int64_t k = 0; k < n; ++k)
        for (int64_t i = k; i >= 0; --i) {
          double sum = i == k ? 1.0 : 0.0;
          for (int64_t j = i + 1; j <= k; ++j)
            sum -= static_cast<double>(r(b + i, b + j)) * column[static_cast<size_t>(j)];
          column[static_cast<size_t>(i)] = sum / r(b + i, b + i);
          u[i * most + k] = static_cast<float>(column[static_cast<size_t>(i)]);
        }
    }
  });
  return inverse;
}

}  // namespace fewbit::cpu
