#pragma once
// Gradients against central differences, both in double: what an op's backward half must agree with.
#include <functional>
#include <vector>

#include "tests/kernels/op_test.h"

namespace fewbit::test {

// Gradient of sum_i dy_i f(x)_i with respect to every element of x.
inline std::vector<double> numeric_gradient(std::vector<double> x, const std::vector<double>& dy,
                                            const std::function<std::vector<double>(const std::vector<double>&)>& f) {
  constexpr double kStep = 1e-5;
  std::vector<double> grad(x.size());
  const auto value = [&] {
    const std::vector<double> y = f(x);
    double sum = 0;
    for (size_t i = 0; i < y.size(); ++i) sum += dy[i] * y[i];
    return sum;
  };
  for (size_t i = 0; i < x.size(); ++i) {
    const double at = x[i];
    x[i] = at + kStep;
    const double above = value();
    x[i] = at - kStep;
    grad[i] = (above - value()) / (2 * kStep);
    x[i] = at;
  }
  return grad;
}

}  // namespace fewbit::test
