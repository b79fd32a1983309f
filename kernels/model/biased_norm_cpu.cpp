// Layer normalisation with a bias: the CPU half. Mean and variance in double, the rest in f32.
#include "kernels/model/biased_norm.h"

#include <cmath>
#include <vector>

#include "kernels/cpu/cpu_rows.h"
#include "src/core/parallel.h"

namespace fewbit::cpu {

void biased_norm(Exec&, ConstTensorView x, ConstTensorView weight, ConstTensorView bias, float eps, TensorView y) {
  const int64_t cols = x.cols();
  for_float_type(x.dtype, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    parallel_for(x.rows(), 16, [&](int64_t begin, int64_t end) {
      std::vector<float> v(static_cast<size_t>(cols)), w(v.size()), b(v.size());
      widen(weight.as<T>(), w.data(), cols);
      widen(bias.as<T>(), b.data(), cols);
      for (int64_t r = begin; r < end; ++r) {
        widen(x.as<T>() + r * cols, v.data(), cols);
        double mean = 0, variance = 0;
        for (const float f : v) mean += f;
        mean /= static_cast<double>(cols);
        for (const float f : v) variance += (f - mean) * (f - mean);
        const double inverse = 1 / std::sqrt(variance / static_cast<double>(cols) + eps);
        for (size_t c = 0; c < v.size(); ++c) v[c] = static_cast<float>((v[c] - mean) * inverse) * w[c] + b[c];
        narrow(v.data(), y.as<T>() + r * cols, cols);
      }
    });
  });
}

}  // namespace fewbit::cpu
