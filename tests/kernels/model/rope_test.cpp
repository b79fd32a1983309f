#include "kernels/model/rope.h"

#include <cmath>

#include "tests/kernels/op_test.h"

namespace fewbit::test {
namespace {

void turns(Exec& ex, RopePairs pairs) {
  struct Case {
    int64_t heads, head_dim, rot;
  };
  const std::vector<int32_t> positions = {0, 1, 7, 1023, 5};
  for (const Case c : {Case{1, 16, 16}, Case{3, 64, 64}, Case{2, 80, 80}, Case{4, 128, 64}})
    for (const DType dtype : kComputeTypes) {
      const int64_t tokens = static_cast<int64_t>(positions.size()), half = c.rot / 2;
      Tensor inv_freq = Tensor::host(DType::f32, {half});
      for (int64_t i = 0; i < half; ++i)
        inv_freq.as<float>()[i] =
            static_cast<float>(std::pow(10000., -2. * static_cast<double>(i) / static_cast<double>(c.rot)));
      const Tensor x = random_normal(dtype, {tokens, c.heads * c.head_dim}, 1), y = ex.to_device(x);
      rope(ex, y, ex.to_device(host_i32(positions)), ex.to_device(inv_freq), c.head_dim, 1.25f, pairs);
      std::vector<double> expected = doubles(x);
      for (int64_t t = 0; t < tokens; ++t)
        for (int64_t h = 0; h < c.heads; ++h)
          for (int64_t i = 0; i < half; ++i) {
            // The angle is an f32 product; at position 1023 its rounding would show.
            const float angle = static_cast<float>(positions[static_cast<size_t>(t)]) * inv_freq.as<float>()[i];
            const bool halves = pairs == RopePairs::halves;
            double& u = expected[static_cast<size_t>((t * c.heads + h) * c.head_dim + (halves ? i : 2 * i))];
            double& v = expected[static_cast<size_t>((t * c.heads + h) * c.head_dim + (halves ? i + half : 2 * i + 1))];
            const double cosine = 1.25 * std::cos(static_cast<double>(angle)),
                         sine = 1.25 * std::sin(static_cast<double>(angle));
            const double a = u * cosine - v * sine, b = v * cosine + u * sine;
            u = a, v = b;
          }
      EXPECT_LE(error_of(ex, y, expected), op_tolerance(dtype))
          << name_of(dtype) << " head_dim " << c.head_dim << " rot " << c.rot;
    }
}

FEWBIT_DEVICE_TEST(ScaleByPosition, GrowsWithTheLogarithmOfWholeSteps) {
  const std::vector<int32_t> positions = {0, 7, 8, 1023, 100000};
  for (const DType dtype : kComputeTypes)
    for (const int64_t shift : {int64_t{0}, int64_t{1}}) {
      const Tensor x = random_normal(dtype, {5, 300}, 1), y = ex.to_device(x);
      scale_by_position(ex, y, ex.to_device(host_i32(positions)), 0.1f, 8, shift);
      std::vector<double> expected = doubles(x);
      for (size_t i = 0; i < expected.size(); ++i)
        expected[i] *= 1 + 0.1f * std::log(1.0 + static_cast<double>((positions[i / 300] + shift) / 8));
      EXPECT_LE(error_of(ex, y, expected), op_tolerance(dtype)) << name_of(dtype) << " " << shift;
    }
}

FEWBIT_DEVICE_TEST(Rope, RotatesPairsHalfARotationApart) { turns(ex, RopePairs::halves); }
FEWBIT_DEVICE_TEST(Rope, RotatesNeighbours) { turns(ex, RopePairs::neighbours); }

}  // namespace
}  // namespace fewbit::test
