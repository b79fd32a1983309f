// The CPU's vector loops over one-byte codes, in every instruction set that this machine has.
#include "kernels/products/bytes/byte_dot.h"

#include <array>
#include <cmath>

#include "kernels/grids/f8_grid.h"
#include "src/core/rng.h"
#include "tests/kernels/op_test.h"

namespace fewbit::test {
namespace {

using cpu::VectorSet;

constexpr int64_t kRows = 7;  // four at once, then one at a time

// Those that this machine has.
std::vector<VectorSet> all_sets() {
  std::vector<VectorSet> of;
  for (const VectorSet l : {VectorSet::avx2, VectorSet::avx512})
    if (l <= cpu::vector_set()) of.push_back(l);
  return of;
}

std::vector<float> normals(int64_t n, uint64_t seed) {
  const Tensor t = random_normal(DType::f32, {n}, seed);
  return {t.as<float>(), t.as<float>() + n};
}

// The sum in the order of dot() (kernels/cpu/cpu_rows.h): 64 partial sums by fused multiply-adds, then a tree; whatever
// instructions dot() itself was compiled for.
float tree_of(const float* x, const float* values, int64_t in) {
  std::array<float, 64> lanes{};
  for (int64_t i = 0; i < in; ++i) {
    float& lane = lanes[static_cast<size_t>(i % 64)];
    lane = std::fma(x[i], values[i], lane);
  }
  for (size_t width = 32; width > 0; width /= 2)
    for (size_t l = 0; l < width; ++l) lanes[l] += lanes[l + width];
  return lanes[0];
}

TEST(F8Dots, EqualTheProductsOfValuesWrittenDown) {
  if (all_sets().empty()) GTEST_SKIP() << "no AVX2 here";
  for (const int64_t in : {64, 256, 1984}) {
    std::vector<uint8_t> codes(static_cast<size_t>(in));
    Rng rng(static_cast<uint64_t>(in), "f8 dots");
    // First every code in turn but the two NaNs, then random ones.
    for (int64_t i = 0; i < in; ++i) {
      const auto code = static_cast<uint8_t>(i < 256 ? i : rng.below(256));
      codes[static_cast<size_t>(i)] = (code & 0x7f) == 0x7f ? 0x01 : code;
    }
    const std::vector<float> x = normals(kRows * in, 5);
    for (const float scale : {1.f, 0.0037f, 3e-39f}) {
      std::vector<float> values(codes.size());
      for (size_t i = 0; i < codes.size(); ++i) values[i] = mul_rn(f8_value(codes[i]), scale);
      for (const VectorSet set : all_sets()) {
        std::array<float, kRows> sums{};
        ASSERT_TRUE(cpu::f8_dots(set, codes.data(), scale, x.data(), kRows, in, sums.data()));
        for (int64_t r = 0; r < kRows; ++r)
          EXPECT_EQ(sums[static_cast<size_t>(r)], tree_of(x.data() + r * in, values.data(), in))
              << in << " values, row " << r;
      }
    }
  }
}

TEST(F8Dots, SayWhereACodeIsNotANumber) {
  if (all_sets().empty()) GTEST_SKIP() << "no AVX2 here";
  const std::vector<float> x = normals(128, 5);
  for (const VectorSet set : all_sets())
    for (size_t at = 0; at < 128; ++at)
      for (const uint8_t nan : {0x7f, 0xff}) {
        std::vector<uint8_t> codes(128, 0x38);
        codes[at] = nan;
        float sum = 0;
        EXPECT_FALSE(cpu::f8_dots(set, codes.data(), 1.f, x.data(), 1, 128, &sum)) << "at " << at;
      }
}

TEST(LevelDots, MatchTheDoubleProduct) {
  if (all_sets().empty()) GTEST_SKIP() << "no AVX2 here";
  struct Case {
    int64_t in, group;
    bool zeros;
  };
  for (const Case& c :
       {Case{16, 16, true}, Case{96, 32, true}, Case{400, 400, false}, Case{1024, 128, true}, Case{1040, 48, false}}) {
    const int64_t groups = (c.in + c.group - 1) / c.group;
    Rng rng(static_cast<uint64_t>(c.in), "level dots");
    std::vector<uint8_t> codes(static_cast<size_t>(c.in)), zeros(static_cast<size_t>(groups));
    std::vector<float> scales(static_cast<size_t>(groups));
    for (uint8_t& code : codes) code = static_cast<uint8_t>(rng.below(256));
    for (uint8_t& zero : zeros) zero = static_cast<uint8_t>(rng.below(256));
    for (float& scale : scales) scale = static_cast<float>(0.01 + rng.uniform());
    const cpu::LevelRow row{.codes = codes.data(),
                            .scales = scales.data(),
                            .zeros = c.zeros ? zeros.data() : nullptr,
                            .zero = 128,
                            .group = c.group,
                            .in = c.in};
    const std::vector<float> x = normals(kRows * c.in, 6);
    ASSERT_TRUE(cpu::level_dots_fit(c.in, c.group));
    for (const VectorSet set : all_sets()) {
      std::array<float, kRows> sums{};
      cpu::level_dots(set, row, x.data(), kRows, sums.data());
      for (int64_t r = 0; r < kRows; ++r) {
        double sum = 0, magnitude = 0;
        for (int64_t i = 0; i < c.in; ++i) {
          const double product = static_cast<double>(x[static_cast<size_t>(r * c.in + i)]) *
                                 scales[static_cast<size_t>(i / c.group)] *
                                 (codes[static_cast<size_t>(i)] - row.zero_of(i / c.group));
          sum += product;
          magnitude += std::fabs(product);
        }
        EXPECT_LE(std::fabs(sums[static_cast<size_t>(r)] - sum), tol::kF32Op * magnitude)
            << c.in << " values in groups of " << c.group;
      }
    }
  }
}

TEST(LevelDots, FitWholeSixteens) {
  if (all_sets().empty()) GTEST_SKIP() << "no AVX2 here";
  EXPECT_TRUE(cpu::f8_dots_fit(128));
  EXPECT_FALSE(cpu::f8_dots_fit(96)) << "sums are those of dot(), by 64";
  EXPECT_TRUE(cpu::level_dots_fit(96, 32));
  EXPECT_TRUE(cpu::level_dots_fit(96, 100)) << "one group of all";
  EXPECT_FALSE(cpu::level_dots_fit(97, 97));
  EXPECT_FALSE(cpu::level_dots_fit(96, 24));
}

}  // namespace
}  // namespace fewbit::test
