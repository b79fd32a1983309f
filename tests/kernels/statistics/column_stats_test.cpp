#include "kernels/statistics/column_stats.h"

#include <cmath>

#include "kernels/statistics/column_energies.h"
#include "tests/kernels/op_test.h"

namespace fewbit::test {
namespace {

struct Expected {
  std::vector<double> absmax, abssum;
};

// Both columns sums by the definition, on top of what was there before.
Expected by_definition(const std::vector<double>& x, int64_t cols, double before, const std::vector<double>& unit,
                       int64_t group) {
  Expected e{std::vector<double>(static_cast<size_t>(cols), before),
             std::vector<double>(static_cast<size_t>(cols), before)};
  const int64_t groups = unit.empty() ? 0 : (cols + group - 1) / group;
  for (size_t i = 0; i < x.size(); ++i) {
    const int64_t r = static_cast<int64_t>(i) / cols, j = static_cast<int64_t>(i) % cols;
    const size_t at = static_cast<size_t>(j);
    const double one = unit.empty() ? 1 : unit[static_cast<size_t>(r * groups + j / group)];
    e.absmax[at] = std::max(e.absmax[at], std::fabs(x[i]));
    e.abssum[at] += std::fabs(x[i]) / one;
  }
  return e;
}

FEWBIT_DEVICE_TEST(ColumnStats, MatchesTheDefinition) {
  constexpr float kBefore = 0.25f;  // results are merged into what the outputs hold
  for (const DType dtype : kComputeTypes)
    for (const int64_t rows : {int64_t{1}, kColumnChunk - 1, 2 * kColumnChunk + 3})
      for (const int64_t cols : {1, 70, 257}) {
        const Tensor x = random_normal(dtype, {rows, cols}, 11);
        const Tensor max = Tensor::host(DType::f32, {cols}), sum = Tensor::host(DType::f64, {cols});
        std::fill_n(max.as<float>(), cols, kBefore);
        std::fill_n(sum.as<double>(), cols, kBefore);
        const Tensor dmax = ex.to_device(max), dsum = ex.to_device(sum);
        column_stats(ex, ex.to_device(x), {}, dmax, dsum);
        const Expected e = by_definition(doubles(x), cols, kBefore, {}, 0);
        EXPECT_EQ(error_of(ex, dmax, e.absmax), 0) << rows << " x " << cols;
        const Tensor found = ex.to_host(dsum);
        for (int64_t j = 0; j < cols; ++j) {
          const double expected = e.abssum[static_cast<size_t>(j)];
          EXPECT_NEAR(found.as<double>()[j], expected, tol::kF32Op * expected) << rows << " x " << cols;
        }
      }
}

FEWBIT_DEVICE_TEST(ColumnEnergies, MatchTheDefinition) {
  for (const int64_t rows : {1, 17, 700})
    for (const int64_t cols : {1, 70, 257}) {
      const Tensor x = random_normal(DType::f32, {rows, cols}, 14), energy = poisoned(ex, DType::f64, {cols});
      column_energies(ex, ex.to_device(x), energy);
      const Tensor found = ex.to_host(energy);
      for (int64_t j = 0; j < cols; ++j) {
        double expected = 0;
        for (int64_t r = 0; r < rows; ++r) expected += std::pow(static_cast<double>(x.as<float>()[r * cols + j]), 2);
        EXPECT_NEAR(found.as<double>()[j], expected, 1e-12 * expected) << rows << " x " << cols;
      }
    }
}

FEWBIT_DEVICE_TEST(ColumnStats, DividesByTheUnitOfTheGroup) {
  constexpr int64_t kRows = 600, kCols = 70, kGroup = 32;
  const Tensor x = random_normal(DType::f32, {kRows, kCols}, 12);
  const Tensor unit = random_normal(DType::f32, {kRows, 3}, 13);
  for (int64_t i = 0; i < unit.numel(); ++i) unit.as<float>()[i] = 0.5f + std::fabs(unit.as<float>()[i]);
  const Tensor max = ex.alloc_zeros(DType::f32, {kCols}), sum = ex.alloc_zeros(DType::f64, {kCols});
  const Tensor device_unit = ex.to_device(unit);
  column_stats(ex, ex.to_device(x), {.unit = device_unit, .group = kGroup}, max, sum);
  const Expected e = by_definition(doubles(x), kCols, 0, doubles(unit), kGroup);
  EXPECT_EQ(error_of(ex, max, e.absmax), 0) << "the unit is no part of the maximum";
  const Tensor found = ex.to_host(sum);
  for (int64_t j = 0; j < kCols; ++j) {
    const double expected = e.abssum[static_cast<size_t>(j)];
    EXPECT_NEAR(found.as<double>()[j], expected, tol::kF32Op * expected) << j;
  }
}

}  // namespace
}  // namespace fewbit::test
