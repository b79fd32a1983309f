#include "kernels/statistics/scaled_peaks.h"

#include <algorithm>
#include <cmath>

#include "src/core/hot.h"
#include "src/core/parallel.h"

namespace fewbit {

namespace hot {

// The index of the largest |x[i]| * s[i]; the first of equal ones.
FEWBIT_HOT int64_t largest_scaled(const float* x, const float* s, int64_t n) {
  constexpr int kLanes = 16;
  float most[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes)
    for (int k = 0; k < kLanes; ++k) {
      const float z = std::fabs(x[i + k] * s[i + k]);
      most[k] = z > most[k] ? z : most[k];
    }
  float top = 0;
  for (const float m : most) top = m > top ? m : top;
  for (int64_t rest = i; rest < n; ++rest) top = std::max(top, std::fabs(x[rest] * s[rest]));
  for (i = 0; i < n; ++i)
    if (!(std::fabs(x[i] * s[i]) < top)) return i;
  return 0;
}

}  // namespace hot

namespace cpu {

void scaled_peaks(Exec&, ConstTensorView x, ConstTensorView scale, int64_t length, TensorView at, TensorView value) {
  const int64_t runs_of_row = x.cols() / length;
  parallel_for(at.numel(), 64, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const int64_t first = r % runs_of_row * length;
      const float* run = x.as<float>() + r * length;
      const int64_t i = hot::largest_scaled(run, scale.as<float>() + first, length);
      at.as<int32_t>()[r] = static_cast<int32_t>(first + i);
      value.as<float>()[r] = run[i];
    }
  });
}

}  // namespace cpu
}  // namespace fewbit
