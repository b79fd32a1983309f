#include "kernels/statistics/squared_error.h"

#include <gtest/gtest.h>

#include "tests/support/devices.h"
#include "tests/support/support.h"
#include "tests/support/tolerance.h"

namespace fewbit::test {
namespace {

void expect_definition(Exec& ex) {
  for (const int64_t rows : {1, 31, 64})
    for (const int64_t cols : {1, 33, 257, 1024}) {
      const Tensor a = random_normal(DType::f32, {rows, cols}, 5), b = random_normal(DType::f32, {rows, cols}, 6);
      const Tensor both = poisoned(ex, DType::f64, {rows}), alone = poisoned(ex, DType::f64, {rows});
      squared_error(ex, ex.to_device(a), ex.to_device(b), both);
      squared_error(ex, ex.to_device(a), {}, alone);
      const Tensor hb = ex.to_host(both), ha = ex.to_host(alone);
      for (int64_t r = 0; r < rows; ++r) {
        double expected = 0, energy = 0;
        for (int64_t c = 0; c < cols; ++c) {
          const double x = a.as<float>()[r * cols + c], d = x - b.as<float>()[r * cols + c];
          expected += d * d;
          energy += x * x;
        }
        EXPECT_NEAR(hb.as<double>()[r], expected, tol::kF32Op * expected) << rows << " x " << cols << " row " << r;
        EXPECT_NEAR(ha.as<double>()[r], energy, tol::kF32Op * energy) << rows << " x " << cols << " row " << r;
      }
    }
}

FEWBIT_DEVICE_TEST(SquaredError, MatchesTheDefinition) { expect_definition(ex); }

}  // namespace
}  // namespace fewbit::test
