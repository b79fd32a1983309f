#include "kernels/statistics/scaled_peaks.h"

#include <cmath>

#include "tests/support/devices.h"
#include "tests/support/support.h"

namespace fewbit {
namespace {

using namespace test;

// By their definition, the first of equal entries too: values are few, so that many are equal.
FEWBIT_DEVICE_TEST(ScaledPeaks, AreTheFirstOfTheLargest) {
  const int64_t rows = 37, n = 240;
  Tensor x = random_normal(DType::f32, {rows, n}, 1), scale = random_normal(DType::f32, {n}, 2);
  for (int64_t i = 0; i < x.numel(); ++i) x.as<float>()[i] = std::round(x.as<float>()[i]);
  for (int64_t j = 0; j < n; ++j) scale.as<float>()[j] = j % 3 == 0 ? 2.f : 1.f;
  for (const int64_t length : {n, int64_t{80}, int64_t{5}, int64_t{1}}) {
    const int64_t runs = rows * n / length;
    const Tensor at = poisoned(ex, DType::i32, {runs}), value = poisoned(ex, DType::f32, {runs});
    scaled_peaks(ex, ex.to_device(x), ex.to_device(scale), length, at, value);
    const Tensor columns = ex.to_host(at), values = ex.to_host(value);
    for (int64_t r = 0; r < runs; ++r) {
      const int64_t first = r % (n / length) * length;
      int64_t best = 0;
      const auto size = [&](int64_t i) {
        return std::fabs(x.as<float>()[r * length + i] * scale.as<float>()[first + i]);
      };
      for (int64_t i = 1; i < length; ++i)
        if (size(i) > size(best)) best = i;
      ASSERT_EQ(columns.as<int32_t>()[r], first + best) << "run " << r << " of " << length;
      ASSERT_EQ(values.as<float>()[r], x.as<float>()[r * length + best]);
    }
  }
}

}  // namespace
}  // namespace fewbit
