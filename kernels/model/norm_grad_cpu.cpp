// Gradient of the RMS norm: the CPU half. The two sums of a row in double, the rest in f32.
#include "kernels/model/norm_grad.h"

#include <algorithm>
#include <cmath>

#include "src/core/parallel.h"

namespace fewbit::cpu {

void rms_norm_grad(Exec&, ConstTensorView x, ConstTensorView weight, float eps, float weight_offset, ConstTensorView dy,
                   float beta, TensorView dx) {
  const int64_t rows = x.rows(), cols = x.cols();
  FEWBIT_ASSERT(weight.numel() == cols && dy.shape == x.shape && dx.shape == x.shape);
  const float* w = weight.as<float>();
  parallel_for(rows, std::max<int64_t>(1, 16384 / std::max<int64_t>(1, cols)), [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const float *xr = x.as<float>() + r * cols, *gr = dy.as<float>() + r * cols;
      float* out = dx.as<float>() + r * cols;
      double squares = 0, product = 0;
      for (int64_t c = 0; c < cols; ++c) {
        squares += static_cast<double>(xr[c]) * xr[c];
        product += static_cast<double>(xr[c]) * gr[c] * (w[c] + weight_offset);
      }
      const double inverse = 1 / std::sqrt(squares / static_cast<double>(cols) + eps);
      const auto along = static_cast<float>(inverse * inverse * inverse * product / static_cast<double>(cols));
      const auto scale = static_cast<float>(inverse);
      for (int64_t c = 0; c < cols; ++c) {
        const float value = scale * gr[c] * (w[c] + weight_offset) - along * xr[c];
        out[c] = beta == 0 ? value : beta * out[c] + value;
      }
    }
  });
}

}  // namespace fewbit::cpu
