// RMS norm and layer norms: the CPU half. Means and mean squares in double, the rest in f32.
#include "kernels/model/norm.h"

#include <algorithm>
#include <cmath>

#include "kernels/cpu/cpu_rows.h"
#include "src/core/parallel.h"

namespace fewbit::cpu {

void rms_norm(Exec&, ConstTensorView x, ConstTensorView weight, float eps, float weight_offset, TensorView y) {
  const int64_t rows = x.rows(), cols = x.cols();
  FEWBIT_ASSERT(weight.numel() == cols && weight.dtype == x.dtype && y.dtype == x.dtype && y.numel() == x.numel());
  for_float_type(x.dtype, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    parallel_for(rows, std::max<int64_t>(1, 16384 / std::max<int64_t>(1, cols)), [&](int64_t begin, int64_t end) {
      float* values = scratch(Scratch::x, cols);
      float* factor = scratch(Scratch::w, cols);
      widen(weight.as<T>(), factor, cols);
      for (int64_t c = 0; c < cols; ++c) factor[c] += weight_offset;
      for (int64_t r = begin; r < end; ++r) {
        widen(x.as<T>() + r * cols, values, cols);
        const double mean_square = sum_of_squares(values, cols) / static_cast<double>(cols);
        const auto inverse = static_cast<float>(1 / std::sqrt(mean_square + eps));
        for (int64_t c = 0; c < cols; ++c) values[c] = values[c] * inverse * factor[c];
        narrow(values, y.as<T>() + r * cols, cols);
      }
    });
  });
}

void layer_norm(Exec&, ConstTensorView x, ConstTensorView weight, const ConstTensorView* bias, float eps,
                TensorView y) {
  const int64_t rows = x.rows(), cols = x.cols();
  for_float_type(x.dtype, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    parallel_for(rows, std::max<int64_t>(1, 16384 / std::max<int64_t>(1, cols)), [&](int64_t begin, int64_t end) {
      float* values = scratch(Scratch::x, cols);
      float* factor = scratch(Scratch::w, cols);
      float* shift = scratch(Scratch::y, cols);
      widen(weight.as<T>(), factor, cols);
      std::fill_n(shift, cols, 0.f);
      if (bias != nullptr) widen(bias->as<T>(), shift, cols);
      for (int64_t r = begin; r < end; ++r) {
        widen(x.as<T>() + r * cols, values, cols);
        double sum = 0;
        for (int64_t c = 0; c < cols; ++c) sum += values[c];
        const auto mean = static_cast<float>(sum / static_cast<double>(cols));
        for (int64_t c = 0; c < cols; ++c) values[c] -= mean;
        const double variance = sum_of_squares(values, cols) / static_cast<double>(cols);
        const auto inverse = static_cast<float>(1 / std::sqrt(variance + eps));
        for (int64_t c = 0; c < cols; ++c) values[c] = values[c] * inverse * factor[c] + shift[c];
        narrow(values, y.as<T>() + r * cols, cols);
      }
    });
  });
}

}  // namespace fewbit::cpu
