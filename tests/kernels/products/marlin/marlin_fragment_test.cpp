// The fragment map of the Marlin kernels against the index map of the layout, for every lane, register and
// half.
#include "kernels/products/marlin/marlin_fragment.h"

#include <gtest/gtest.h>

#include <set>

namespace fewbit::marlin {
namespace {

class MarlinFragment : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Bits, MarlinFragment, testing::Values(4, 8));

TEST_P(MarlinFragment, RegistersHoldTheElementsOfTheMma) {
  const int bits = GetParam();
  const int64_t row = 3, chunk = 2;  // a tile in the middle of a matrix
  std::set<std::pair<int64_t, int>> seen;
  for (int lane = 0; lane < 32; ++lane)
    for (int j = 0; j < kSubTiles; ++j)
      for (int reg = 0; reg < 4; ++reg)
        for (int half = 0; half < 2; ++half) {
          // The A operand of mma.m16n8k16 as the PTX ISA defines it, rows being outputs.
          const int g = lane / 4, t = lane % 4;
          const int out_row = g + (reg == 1 || reg == 3 ? 8 : 0), k = 2 * t + half + (reg >= 2 ? 8 : 0);
          EXPECT_EQ(fragment_output(lane, j, reg), 16 * j + out_row);
          EXPECT_EQ(fragment_k(lane, reg, half), k);
          const int64_t word = chunk * tile_words(bits) + lane * lane_words(bits) + fragment_word(j, reg, bits);
          const int field = half ? fragment_high_field(reg, bits) : fragment_field(reg, bits);
          const WordPos want = word_of(16 * row + k, 64 * chunk + 16 * j + out_row, bits);
          EXPECT_EQ(want.row, row);
          EXPECT_EQ(want.col, word) << "lane " << lane << " j " << j << " reg " << reg << " half " << half;
          EXPECT_EQ(want.field, field) << "lane " << lane << " j " << j << " reg " << reg << " half " << half;
          const Element back = element_of(row, word, field, bits);
          EXPECT_EQ(back.k, 16 * row + k);
          EXPECT_EQ(back.n, 64 * chunk + fragment_output(lane, j, reg));
          EXPECT_TRUE(seen.emplace(word, field).second);
        }
  EXPECT_EQ(seen.size(), static_cast<size_t>(kTileK * kTileN));
}

TEST_P(MarlinFragment, ScalesAndZerosOfTheLane) {
  const int bits = GetParam();
  const int64_t chunk = 5;
  for (int lane = 0; lane < 32; ++lane)
    for (int j = 0; j < kSubTiles; ++j)
      for (int high = 0; high < 2; ++high) {
        const int index = 2 * j + high;
        const int64_t n = 64 * chunk + fragment_output(lane, j, high);
        EXPECT_EQ(scale_column(n, true), 64 * chunk + fragment_scale(lane, index, true));
        EXPECT_EQ(scale_column(n, false), 64 * chunk + fragment_scale(lane, index, false));
        const WordPos zero = zero_of(7, n, bits);
        EXPECT_EQ(zero.col, chunk * (64 * bits / 32) + fragment_zero_word(lane, index, bits));
        EXPECT_EQ(zero.field, fragment_zero_field(index, bits));
      }
}

TEST_P(MarlinFragment, UnitsInSharedMemoryArePermutedWithoutConflicts) {
  const int bits = GetParam(), units = tile_words(bits) / 4, pieces = lane_words(bits) / 4;
  std::set<int> positions;
  for (int u = 0; u < units; ++u) positions.insert(unit_position(u, bits));
  EXPECT_EQ(positions.size(), static_cast<size_t>(units));
  EXPECT_EQ(*positions.rbegin(), units - 1);
  // A 16-byte access is served a quarter of a warp at a time: eight lanes must touch eight different bank
  // groups.
  for (int piece = 0; piece < pieces; ++piece)
    for (int quarter = 0; quarter < 4; ++quarter) {
      std::set<int> banks;
      for (int lane = 8 * quarter; lane < 8 * quarter + 8; ++lane)
        banks.insert(unit_position(lane * pieces + piece, bits) % 8);
      EXPECT_EQ(banks.size(), 8u);
    }
}

TEST(MarlinFragmentActivations, ALanesPairsAreNeighbours) {
  for (int t = 0; t < 4; ++t) {
    EXPECT_EQ(pair_slot(t), 2 * t);          // k 2t, 2t+1: the first register of the column operand
    EXPECT_EQ(pair_slot(t + 4), 2 * t + 1);  // k 2t+8, 2t+9: the second
  }
}

}  // namespace
}  // namespace fewbit::marlin
