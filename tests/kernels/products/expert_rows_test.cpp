// The rows of a mixture's experts: lists, places, and the way back to the tokens.
#include "kernels/products/expert_rows.h"

#include <algorithm>
#include <numeric>
#include <random>

#include "kernels/model/route.h"
#include "tests/kernels/op_test.h"

namespace fewbit::test {
namespace {

// Distinct experts for every token, in any order.
Tensor some_ids(int64_t tokens, int64_t top_k, int experts) {
  std::mt19937 random(7);
  std::vector<int32_t> all(static_cast<size_t>(experts)), ids;
  std::iota(all.begin(), all.end(), 0);
  for (int64_t t = 0; t < tokens; ++t) {
    std::shuffle(all.begin(), all.end(), random);
    ids.insert(ids.end(), all.begin(), all.begin() + top_k);
  }
  return Tensor::host_from<int32_t>(DType::i32, {tokens, top_k}, ids);
}

struct Lists {
  Tensor rows, weights, places, begin;
};
Lists lists_of(Exec& ex, const Tensor& ids, const Tensor& shares, int experts) {
  Lists l{.rows = poisoned(ex, DType::i32, {ids.numel()}),
          .weights = poisoned(ex, DType::f32, {ids.numel()}),
          .places = poisoned(ex, DType::i32, ids.shape()),
          .begin = poisoned(ex, DType::i32, {experts + 1})};
  expert_lists(ex, ex.to_device(ids), ex.to_device(shares),
               {.rows = l.rows, .weights = l.weights, .places = l.places, .begin = l.begin});
  return l;
}

FEWBIT_DEVICE_TEST(ExpertRows, ListsAreSortedByExpertThenToken) {
  struct Case {
    int64_t tokens, top_k;
    int experts;
  };
  for (const Case c : {Case{1, 1, 1}, Case{19, 2, 5}, Case{1000, 8, 128}, Case{2500, 3, 7}}) {
    const Tensor ids = some_ids(c.tokens, c.top_k, c.experts);
    const Tensor shares = random_normal(DType::f32, ids.shape(), 5);
    const Lists l = lists_of(ex, ids, shares, c.experts);
    const Tensor rows = ex.to_host(l.rows), weights = ex.to_host(l.weights), places = ex.to_host(l.places);
    const Tensor begin = ex.to_host(l.begin);
    int64_t at = 0;
    for (int e = 0; e < c.experts; ++e) {
      EXPECT_EQ(begin.as<int32_t>()[e], at);
      for (int64_t i = 0; i < ids.numel(); ++i) {
        if (ids.as<int32_t>()[i] != e) continue;
        ASSERT_EQ(rows.as<int32_t>()[at], i / c.top_k);
        ASSERT_EQ(weights.as<float>()[at], shares.as<float>()[i]);
        ASSERT_EQ(places.as<int32_t>()[i], at++);
      }
    }
    EXPECT_EQ(begin.as<int32_t>()[c.experts], at);
  }
}

FEWBIT_DEVICE_TEST(ExpertRows, RunsOfRowsGoToTheirPlaces) {
  for (const int64_t cols : {1, 3, 8, 520})
    for (const DType dtype : kComputeTypes) {
      const Tensor x = random_normal(dtype, {9, cols}, 1);
      const std::vector<int32_t> list{4, 4, 0, 8, 2, 7};
      const std::vector<PlacedRows> runs{
          {.from = 1, .to = 10, .count = 3}, {.from = 0, .to = 0, .count = 0}, {.from = 4, .to = 2, .count = 2}};
      const Tensor y = ex.alloc_zeros(dtype, {14, cols});
      place_rows(ex, ex.to_device(x), ex.to_device(host_i32(list)), runs, y);
      const std::vector<double> found = doubles(ex.to_host(y)), from = doubles(x);
      std::vector<double> expected(found.size(), 0);
      for (const PlacedRows& r : runs)
        for (int64_t i = 0; i < r.count; ++i)
          std::copy_n(from.begin() + list[static_cast<size_t>(r.from + i)] * cols, cols,
                      expected.begin() + (r.to + i) * cols);
      EXPECT_EQ(found, expected) << cols << " " << name_of(dtype);
    }
}

FEWBIT_DEVICE_TEST(ExpertRows, CombinedTheyHaveTheBitsOfOneExpertAfterTheOther) {
  constexpr int kExperts = 12;
  for (const int64_t cols : {5, 264})
    for (const DType dtype : kComputeTypes) {
      const Tensor ids = some_ids(70, 4, kExperts), shares = random_normal(DType::f32, ids.shape(), 5);
      const Lists l = lists_of(ex, ids, shares, kExperts);
      const Tensor y = ex.to_device(random_normal(dtype, {ids.numel(), cols}, 6)), begin = ex.to_host(l.begin);
      const Tensor start = random_normal(DType::f32, {70, cols}, 8);
      const Tensor each = ex.to_device(start), all = ex.to_device(start), parts = ex.to_device(start);
      const auto at = [&](int e) { return static_cast<int64_t>(begin.as<int32_t>()[e]); };
      for (int e = 0; e < kExperts; ++e)
        if (at(e + 1) > at(e))
          scatter_add_rows(ex, y.view().row_range(at(e), at(e + 1)), l.rows.view().row_range(at(e), at(e + 1)),
                           l.weights.view().row_range(at(e), at(e + 1)), each);
      combine_rows(ex, y, l.places, l.weights, 0, all);
      for (const auto& [first, last] : {std::pair{0, 5}, std::pair{5, kExperts}})
        combine_rows(ex, y.view().row_range(at(first), at(last)), l.places, l.weights, at(first), parts);
      EXPECT_EQ(doubles(ex.to_host(all)), doubles(ex.to_host(each))) << cols << " " << name_of(dtype);
      EXPECT_EQ(doubles(ex.to_host(parts)), doubles(ex.to_host(each))) << cols << " " << name_of(dtype);
    }
}

}  // namespace
}  // namespace fewbit::test
