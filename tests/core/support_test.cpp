// The ground floor's helpers: globs, the parallel loop, the generator, the content hash.
#include <gtest/gtest.h>

#include <atomic>
#include <cmath>
#include <stdexcept>
#include <vector>

#include "src/core/hash.h"
#include "src/core/parallel.h"
#include "src/core/rng.h"
#include "src/core/strings.h"

namespace fewbit::test {
namespace {

TEST(Notes, StandInALine) {
  std::string notes;
  add_note(notes, "");
  EXPECT_EQ(notes, "");
  add_note(notes, "one");
  add_note(notes, "");
  add_note(notes, "another");
  EXPECT_EQ(notes, "one; another");
}

TEST(GlobMatch, Cases) {
  EXPECT_TRUE(glob_match("", ""));
  EXPECT_FALSE(glob_match("", "a"));
  EXPECT_TRUE(glob_match("*", ""));
  EXPECT_TRUE(glob_match("*.down_proj", "model.layers.3.mlp.down_proj"));
  EXPECT_FALSE(glob_match("*.down_proj", "model.layers.3.mlp.down_proj.weight"));
  EXPECT_TRUE(glob_match("model.layers.?.mlp.*", "model.layers.3.mlp.up_proj"));
  EXPECT_FALSE(glob_match("model.layers.?.mlp.*", "model.layers.13.mlp.up_proj"));
  EXPECT_TRUE(glob_match("*a*b*", "xxaxxbxx"));
  EXPECT_TRUE(glob_match("a*ab", "aaab"));  // the star has to give back
  EXPECT_FALSE(glob_match("a*ab", "aaba"));
  EXPECT_TRUE(glob_match("lm_head", "lm_head"));
  EXPECT_FALSE(glob_match("lm_head", "model.lm_head"));
  EXPECT_TRUE(glob_match("model.layers.[23].*", "model.layers.3.mlp"));
  EXPECT_FALSE(glob_match("model.layers.[23].*", "model.layers.4.mlp"));
  EXPECT_TRUE(glob_match("*.experts.[0-3].*", "a.experts.17.b.experts.2.up")) << "the star has to give back here too";
  EXPECT_FALSE(glob_match("*.[!0-3].*", "a.2.b"));
  EXPECT_TRUE(glob_match("*.[!0-3].*", "a.7.b"));
  EXPECT_TRUE(glob_match("[]a]", "]"));
  EXPECT_TRUE(glob_match("a[b", "a[b")) << "nothing closes it";
  EXPECT_FALSE(glob_match("a[b", "ab"));
  EXPECT_TRUE(glob_match("a[0]", "a0"));
  EXPECT_FALSE(glob_match("a[0]", "a[0]"));
  EXPECT_FALSE(glob_match("?", ""));
}

TEST(Strings, SplitAndJoin) {
  EXPECT_EQ(split("a+b", '+'), (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(split("", '+'), (std::vector<std::string>{""}));
  EXPECT_EQ(split("+a+", '+'), (std::vector<std::string>{"", "a", ""}));
  EXPECT_EQ(words("  int4  g128\tsym\n"), (std::vector<std::string>{"int4", "g128", "sym"}));
  EXPECT_EQ(join({"a", "b", "c"}, ", "), "a, b, c");
  EXPECT_EQ(join({}, ", "), "");
}

TEST(ParallelFor, CoversEveryIndexOnce) {
  for (int64_t n : {0, 1, 7, 64, 1000})
    for (int64_t grain : {1, 3, 64, 5000}) {
      std::vector<std::atomic<int>> seen(static_cast<size_t>(n));
      parallel_for(n, grain, [&](int64_t begin, int64_t end) {
        EXPECT_LE(end - begin, grain);
        EXPECT_EQ(begin % grain, 0);  // borders depend on n and grain alone
        for (int64_t i = begin; i < end; ++i) ++seen[static_cast<size_t>(i)];
      });
      for (int64_t i = 0; i < n; ++i) ASSERT_EQ(seen[static_cast<size_t>(i)], 1) << n << " " << grain << " " << i;
    }
}

TEST(ParallelFor, ExceptionsReachTheCaller) {
  const auto body = [](int64_t begin, int64_t) {
    if (begin == 40) throw std::runtime_error("at 40");
  };
  try {
    parallel_for(100, 10, body);
    FAIL() << "no exception";
  } catch (const std::runtime_error& e) {
    EXPECT_STREQ(e.what(), "at 40");
  }
  std::atomic<int64_t> sum{0};  // and the pool still works
  parallel_for(100, 10, [&](int64_t begin, int64_t end) { sum += end - begin; });
  EXPECT_EQ(sum, 100);
}

TEST(ParallelFor, NestedLoopsRunInline) {
  std::atomic<int64_t> sum{0};
  parallel_for(8, 1, [&](int64_t begin, int64_t) {
    parallel_for(100, 7, [&](int64_t from, int64_t to) {
      for (int64_t i = from; i < to; ++i) sum += begin * 100 + i;
    });
  });
  EXPECT_EQ(sum, 800 * 799 / 2);
}

// Pinned: a calibration draw and a random test tensor must not change between releases.
TEST(Rng, ValuesArePinned) {
  EXPECT_EQ(Rng(0).at(0), 0x21fa69a58f3d62f5ull);
  EXPECT_EQ(Rng(1, "layer").at(0), 0xd4b52b44708c0c20ull);
  EXPECT_EQ(Rng(1, "layer").at(1000000), 0xca7b9764a79d6d8aull);
}

TEST(Rng, NextWalksTheCounter) {
  Rng walking(5, "x");
  const Rng fixed(5, "x");
  for (uint64_t i = 0; i < 10; ++i) EXPECT_EQ(walking.next(), fixed.at(i));
  EXPECT_NE(Rng(5, "y").at(0), fixed.at(0));
  EXPECT_NE(Rng(6, "x").at(0), fixed.at(0));
}

TEST(Rng, BelowReachesEveryValueAndNoOther) {
  Rng rng(2);
  std::vector<int> counts(7);
  for (int i = 0; i < 7000; ++i) ++counts.at(rng.below(7));
  for (int c : counts) EXPECT_TRUE(c > 850 && c < 1150) << c;  // 1000 expected, five standard deviations
}

TEST(Rng, NormalHasMeanZeroAndVarianceOne) {
  const Rng rng(3);
  double sum = 0, squares = 0;
  const int n = 100000;
  for (int i = 0; i < n; ++i) {
    const double v = rng.normal_at(static_cast<uint64_t>(i));
    sum += v, squares += v * v;
  }
  EXPECT_LT(std::fabs(sum / n), 5 / std::sqrt(n));
  EXPECT_LT(std::fabs(squares / n - 1), 5 * std::sqrt(2.0 / n));
}

TEST(Hash, DependsOnBytesAndLengthNotOnTheCutting) {
  const std::string s = "eleven bytes and some more";
  Hasher whole, pieces;
  whole.add(s.data(), s.size());
  for (char c : s) pieces.add(&c, 1);
  EXPECT_EQ(whole.hex(), pieces.hex());
  EXPECT_EQ(whole.hex().size(), 16u);
  EXPECT_NE(content_hash("a\0", 2), content_hash("a", 1));
  EXPECT_NE(content_hash("ab", 2), content_hash("ba", 2));
}

}  // namespace
}  // namespace fewbit::test
