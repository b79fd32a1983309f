// Distance of two matrices by rows: the CPU half.
#include "kernels/statistics/squared_error.h"

#include "src/core/parallel.h"

namespace fewbit::cpu {

void squared_error(Exec&, ConstTensorView a, ConstTensorView b, TensorView error) {
  const int64_t rows = a.rows(), cols = a.cols();
  const float* pa = a.as<float>();
  const float* pb = b.data ? b.as<float>() : nullptr;
  double* out = error.as<double>();
  FEWBIT_ASSERT(error.numel() == rows);
  parallel_for(rows, 16, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      double sum = 0;
      for (int64_t c = 0; c < cols; ++c) {
        const double d = static_cast<double>(pa[r * cols + c]) - (pb ? pb[r * cols + c] : 0.f);
        sum += d * d;
      }
      out[r] = sum;
    }
  });
}

}  // namespace fewbit::cpu
