// The Marlin index map: both directions are inverse, and scales and zero points are permuted, not lost.
#include "src/core/marlin_layout.h"

#include <gtest/gtest.h>

#include <set>
#include <tuple>

namespace fewbit::test {
namespace {

class MarlinLayout : public testing::TestWithParam<int> {};

TEST_P(MarlinLayout, WordAndElementAreInverse) {
  const int bits = GetParam();
  const int64_t k_size = 32, n_size = 128;
  std::set<std::tuple<int64_t, int64_t, int>> seen;
  for (int64_t k = 0; k < k_size; ++k)
    for (int64_t n = 0; n < n_size; ++n) {
      const marlin::WordPos p = marlin::word_of(k, n, bits);
      ASSERT_TRUE(p.row >= 0 && p.row < k_size / marlin::kTileK) << k << " " << n;
      ASSERT_TRUE(p.col >= 0 && p.col < marlin::words_per_row(n_size, bits)) << k << " " << n;
      ASSERT_TRUE(p.field >= 0 && p.field < 32 / bits) << k << " " << n;
      ASSERT_TRUE(seen.insert({p.row, p.col, p.field}).second) << k << " " << n;
      const marlin::Element e = marlin::element_of(p.row, p.col, p.field, bits);
      ASSERT_EQ(e.k, k);
      ASSERT_EQ(e.n, n);
    }
  EXPECT_EQ(static_cast<int64_t>(seen.size()), k_size * n_size);
}

TEST_P(MarlinLayout, ZeroPointsArePermuted) {
  const int bits = GetParam();
  const int64_t n_size = 128;
  std::set<std::tuple<int64_t, int>> seen;
  for (int64_t n = 0; n < n_size; ++n) {
    const marlin::WordPos p = marlin::zero_of(3, n, bits);
    EXPECT_EQ(p.row, 3);
    EXPECT_TRUE(p.col >= 0 && p.col < n_size * bits / 32 && p.field >= 0 && p.field < 32 / bits) << n;
    EXPECT_TRUE(seen.insert({p.col, p.field}).second) << n;
  }
}

INSTANTIATE_TEST_SUITE_P(Bits, MarlinLayout, testing::Values(4, 8));

TEST(MarlinScales, ColumnsArePermuted) {
  for (bool grouped : {false, true}) {
    std::set<int64_t> seen;
    for (int64_t n = 0; n < 192; ++n) {
      const int64_t c = marlin::scale_column(n, grouped);
      EXPECT_TRUE(c >= 0 && c < 192) << n;
      EXPECT_EQ(c / 64, n / 64) << "a scale leaves its tile";
      EXPECT_TRUE(seen.insert(c).second) << n;
    }
  }
}

TEST(MarlinScales, KnownColumns) {
  EXPECT_EQ(marlin::scale_column(1, true), 8);  // 8 x 8 transpose
  EXPECT_EQ(marlin::scale_column(8, true), 1);
  EXPECT_EQ(marlin::scale_column(65, true), 72);
  EXPECT_EQ(marlin::scale_column(1, false), 1);  // pairs stay together
  EXPECT_EQ(marlin::scale_column(2, false), 8);
  EXPECT_EQ(marlin::scale_column(8, false), 2);
}

TEST(MarlinAdmits, ShapesAndGroups) {
  EXPECT_TRUE(marlin::admits(64, 128, 128, 4));
  EXPECT_TRUE(marlin::admits(64, 48, -1, 8));
  EXPECT_FALSE(marlin::admits(32, 128, 128, 4));
  EXPECT_FALSE(marlin::admits(64, 120, -1, 4));
  EXPECT_FALSE(marlin::admits(64, 192, 128, 4));
  EXPECT_FALSE(marlin::admits(64, 128, 128, 3));
  EXPECT_TRUE(marlin::published_kernel_admits(256, 128, 128, 4));
  EXPECT_FALSE(marlin::published_kernel_admits(128, 128, 128, 4));
  EXPECT_FALSE(marlin::published_kernel_admits(256, 128, 64, 4));
}

}  // namespace
}  // namespace fewbit::test
