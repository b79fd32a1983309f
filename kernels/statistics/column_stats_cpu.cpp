// Largest and summed magnitude of columns: the CPU half. A strip of columns belongs to one thread.
#include "kernels/statistics/column_stats.h"

#include <algorithm>
#include <cmath>
#include <vector>

#include "src/core/half.h"
#include "src/core/mat.h"
#include "src/core/parallel.h"

namespace fewbit::cpu {
namespace {

constexpr int64_t kStrip = 64;  // columns: 256 bytes of a row of f32

template <class T>
void stats_as(Mat<const T> x, const ColumnUnit& u, float* absmax, double* abssum) {
  const int64_t groups = u.unit.data ? u.unit.cols() : 0;
  const float* unit = u.unit.data ? u.unit.as<float>() : nullptr;
  parallel_for(x.cols, kStrip, [&](int64_t begin, int64_t end) {
    std::vector<double> chunk(static_cast<size_t>(end - begin));
    for (int64_t r0 = 0; r0 < x.rows; r0 += kColumnChunk) {
      std::fill(chunk.begin(), chunk.end(), 0.0);
      for (int64_t r = r0; r < std::min(x.rows, r0 + kColumnChunk); ++r)
        for (int64_t j = begin; j < end; ++j) {
          const float magnitude = std::fabs(static_cast<float>(x(r, j)));
          if (magnitude > absmax[j]) absmax[j] = magnitude;
          const double one = unit ? unit[r * groups + j / u.group] : 1.0;
          chunk[static_cast<size_t>(j - begin)] += static_cast<double>(magnitude) / one;
        }
      for (int64_t j = begin; j < end; ++j) abssum[j] += chunk[static_cast<size_t>(j - begin)];
    }
  });
}

}  // namespace

void column_stats(Exec&, ConstTensorView x, const ColumnUnit& u, TensorView absmax, TensorView abssum) {
  FEWBIT_ASSERT(absmax.numel() == x.cols() && abssum.numel() == x.cols());
  FEWBIT_ASSERT(!u.unit.data || (u.group > 0 && u.unit.rows() == x.rows()));
  if (x.dtype == DType::f32) return stats_as<float>(mat<float>(x), u, absmax.as<float>(), abssum.as<double>());
  FEWBIT_ASSERT(x.dtype == DType::bf16);
  stats_as<bf16>(mat<bf16>(x), u, absmax.as<float>(), abssum.as<double>());
}

}  // namespace fewbit::cpu
