#include "kernels/statistics/column_energies.h"

#include <algorithm>

#include "src/core/parallel.h"

namespace fewbit::cpu {

void column_energies(Exec&, ConstTensorView x, TensorView energy) {
  const int64_t cols = x.cols();
  parallel_for(cols, 256, [&](int64_t begin, int64_t end) {
    double* sum = energy.as<double>();
    std::fill(sum + begin, sum + end, 0.0);
    for (int64_t r = 0; r < x.rows(); ++r)
      for (int64_t j = begin; j < end; ++j) {
        const double v = x.as<float>()[r * cols + j];
        sum[j] += v * v;
      }
  });
}

}  // namespace fewbit::cpu
