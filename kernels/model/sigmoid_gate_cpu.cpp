// A branch times the logistic function of its gate: the CPU half.
#include "kernels/model/sigmoid_gate.h"

#include <cmath>
#include <vector>

#include "kernels/cpu/cpu_rows.h"
#include "src/core/parallel.h"

namespace fewbit::cpu {

void sigmoid_gate(Exec&, ConstTensorView gate, ConstTensorView x, TensorView out) {
  const int64_t cols = x.cols(), gates = gate.cols(), each = cols / gates;
  for_float_type(x.dtype, [&](auto* type) {
    using T = std::remove_pointer_t<decltype(type)>;
    parallel_for(x.rows(), 16, [&](int64_t begin, int64_t end) {
      std::vector<float> g(static_cast<size_t>(gates)), v(static_cast<size_t>(cols));
      for (int64_t r = begin; r < end; ++r) {
        widen(gate.as<T>() + r * gates, g.data(), gates);
        widen(x.as<T>() + r * cols, v.data(), cols);
        for (int64_t i = 0; i < gates; ++i) {
          const float factor = 1 / (1 + std::exp(-g[static_cast<size_t>(i)]));
          for (int64_t c = i * each; c < (i + 1) * each; ++c) v[static_cast<size_t>(c)] *= factor;
        }
        narrow(v.data(), out.as<T>() + r * cols, cols);
      }
    });
  });
}

}  // namespace fewbit::cpu
