#include "kernels/quantize/learned_grid.h"

#include <cmath>

#include "tests/kernels/op_test.h"
#include "tests/kernels/quantize/quantizer_fixture.h"

namespace fewbit::test {
namespace {

// A coded linear with its variables on a device.
struct Bench {
  Exec& ex;
  Tensor codes, scales, zeros, level, factor, mean, square;
  int bits;
  int64_t group;

  Bench(Exec& e, int64_t out, int64_t in, int b, int64_t g, bool symmetric) : ex(e), bits(b), group(g) {
    const Shape grids{out, (in + g - 1) / g};
    codes = random_codes({out, in}, 1 << b, 2);
    scales = random_normal(DType::f32, grids, 3, 0.05f);
    for (int64_t i = 0; i < scales.numel(); ++i)
      scales.as<float>()[i] = representable_scale(scales.as<float>()[i], DType::f16);
    if (!symmetric) zeros = ex.to_device(random_codes(grids, 1 << b, 4));
    level = poisoned(ex, DType::f32, {out, in});
    factor = poisoned(ex, DType::f32, grids);
    mean = poisoned(ex, DType::f32, grids);
    square = poisoned(ex, DType::f32, grids);
    scales = ex.to_device(scales);
    codes = ex.to_device(codes);
  }
  LearnedGrid grid() const {
    return {.start = {.scales = scales, .zeros = zeros, .bits = bits, .group = group},
            .level = level,
            .factor = factor,
            .mean = mean,
            .square = square};
  }
  Tensor values() const {
    Tensor v = poisoned(ex, DType::f32, codes.shape());
    learned_values(ex, grid(), v);
    return ex.to_host(v);
  }
};

// In the beginning the values are those of the codes, and codes and scales come back as they were.
FEWBIT_DEVICE_TEST(LearnedGrid, BeginsAtTheCodes) {
  for (const bool symmetric : {true, false})
    for (const int64_t group : {32, 48, 200}) {
      Bench b(ex, 7, 200, 3, group, symmetric);
      learned_start(ex, b.codes, b.grid());
      Tensor expected = ex.alloc(DType::f32, b.codes.shape());
      dequantize(ex, {.codes = b.codes, .scales = b.scales, .zeros = b.zeros, .bits = 3, .group = group}, expected);
      EXPECT_EQ(first_difference(b.values(), ex.to_host(expected)), "");
      const Tensor codes = poisoned(ex, DType::u8, b.codes.shape()),
                   scales = poisoned(ex, DType::f32, b.scales.shape());
      learned_codes(ex, b.grid(), codes, scales);
      EXPECT_EQ(first_difference(ex.to_host(codes), ex.to_host(b.codes)), "");
      EXPECT_EQ(first_difference(ex.to_host(scales), ex.to_host(b.scales)), "");
    }
}

// Two steps of the formulas, in double.
FEWBIT_DEVICE_TEST(LearnedGrid, StepsFollowTheFormulas) {
  const int64_t out = 5, in = 100, group = 48, groups = 3;
  Bench b(ex, out, in, 3, group, true);
  learned_start(ex, b.codes, b.grid());
  std::vector<double> level = doubles(ex.to_host(b.level)), factor(static_cast<size_t>(out * groups), 1.0),
                      mean(factor.size(), 0.0), square(factor.size(), 0.0);
  const Tensor scales = ex.to_host(b.scales);
  for (int count = 1; count <= 2; ++count) {
    const Tensor grad = random_normal(DType::f32, {out, in}, static_cast<uint64_t>(10 + count));
    for (int64_t g = 0; g < out * groups; ++g) {
      const auto at = static_cast<size_t>(g);
      const double scale = scales.as<float>()[g];
      double slope = 0;
      for (int64_t c = g % groups * group; c < std::min(in, (g % groups + 1) * group); ++c) {
        const int64_t i = g / groups * in + c;
        double& z = level[static_cast<size_t>(i)];
        slope += grad.as<float>()[i] * scale * std::min(3.0, std::max(-4.0, std::nearbyint(z)));
        z -= 0.05 * (grad.as<float>()[i] * scale > 0 ? 1 : -1);
      }
      mean[at] = 0.9 * mean[at] + 0.1 * slope;
      square[at] = 0.999 * square[at] + 0.001 * slope * slope;
      factor[at] -= 0.01 * mean[at] / (1 - std::pow(0.9, count)) / std::sqrt(square[at] / (1 - std::pow(0.999, count)));
    }
    learned_step(ex, ex.to_device(grad), {.level_rate = 0.05f, .factor_rate = 0.01f, .count = count}, b.grid());
    EXPECT_LE(error_of(ex, b.level, level), tol::kF32Op);
    EXPECT_LE(error_of(ex, b.factor, factor), tol::kF32Op * 10);
  }
  // The values are what the codes and scales say that would be written.
  const Tensor codes = poisoned(ex, DType::u8, b.codes.shape()), written = poisoned(ex, DType::f32, b.scales.shape());
  learned_codes(ex, b.grid(), codes, written);
  const Tensor expected = ex.alloc(DType::f32, b.codes.shape());
  dequantize(ex, {.codes = codes, .scales = written, .zeros = {}, .bits = 3, .group = group}, expected);
  EXPECT_EQ(first_difference(b.values(), ex.to_host(expected)), "");
  const Tensor host = ex.to_host(written);
  for (int64_t i = 0; i < host.numel(); ++i)
    EXPECT_EQ(host.as<float>()[i], representable_scale(host.as<float>()[i], DType::f16));
}

}  // namespace
}  // namespace fewbit::test
