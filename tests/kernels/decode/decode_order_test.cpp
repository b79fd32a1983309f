#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <vector>

#include "kernels/decode/decode_layers_order.h"
#include "src/core/rng.h"

// The producer warps of a decode step in one launch know the order of their tiles for themselves, and so do the
// consumer warps, which take them from the rings. Here both are walked through on the host, for random products.
// Beside what it tests: tests of other products have names of the same kind.
namespace fewbit::cuda::decode_step::order_test {
namespace {

struct Tile {
  int layer, product, n_tile, k_tile;
  auto operator<=>(const Tile&) const = default;
  std::string text() const { return fmt::format("layer {} product {} n {} k {}", layer, product, n_tile, k_tile); }
};
using Tiles = std::vector<Tile>;

struct Case {
  int clusters = 1;
  LaunchSpan span{};
  ProductShape products[kProducts]{};
  int blocks() const { return clusters * kKSplits; }
};

int between(Rng& rng, int low, int high) {
  return low + static_cast<int>(rng.below(static_cast<uint64_t>(high - low + 1)));
}

// With the widths of real layers and of small ones: fewer n tiles than clusters, k tiles that no number of warps
// divides.
Case random_case(Rng& rng, bool shares, bool whole) {
  Case c{.clusters = between(rng, 1, 70)};
  c.span.count = between(rng, 1, 3);
  if (!whole) {
    c.span.first_product = between(rng, 0, kProducts - 1);
    c.span.end_product = between(rng, c.span.first_product + 1, c.span.first_product + kProducts);
  }
  for (ProductShape& p : c.products) {
    p = {.n_tiles = between(rng, 1, 4 * c.clusters), .k_tiles = between(rng, 2, 120), .sharers = 1};
    const int left = p.n_tiles % c.clusters;
    if (!shares || left == 0 || p.n_tiles < c.clusters) continue;
    const int most = std::min({c.clusters / left, p.k_tiles / kKSplits, kMaxSharers});
    p.sharers = between(rng, 1, std::max(1, most));
  }
  return c;
}
template <bool kShares>
std::vector<WorkRange> ranges_of(const Case& c, int block) {
  std::vector<WorkRange> ranges(kProducts);
  for (int p = 0; p < kProducts; ++p)
    ranges[static_cast<size_t>(p)].set<kShares>(c.products[p], block % kKSplits, block / kKSplits, c.clusters);
  return ranges;
}

template <bool kShares, bool kMixture, bool kWhole>
Tiles producers_order(const Case& c, const std::vector<WorkRange>& ranges, int warp, size_t most) {
  Tiles found;
  TileOrder<kShares, kMixture, kWhole> order(c.span, ranges.data(), warp);
  for (; !order.done() && found.size() <= most; order.next())
    found.push_back({order.layer, order.product, order.n_tile, order.k});
  return found;
}
// As the consumer warps go: product by product, of each the shared n tile in front of the block's own.
template <bool kShares, bool kMixture, bool kWhole>
Tiles consumers_order(const Case& c, const std::vector<WorkRange>& ranges, int warp) {
  Tiles found;
  const int first = kWhole ? 0 : c.span.first_product, end = kWhole ? c.span.count * kProducts : c.span.end_product;
  for (int at = first; at < end; ++at) {
    const WorkRange& range = ranges[static_cast<size_t>(at % kProducts)];
    for (int nth = range.shared_tile >= 0 ? kSharedTile : 0; nth < range.n_count; ++nth) {
      const bool shared = nth == kSharedTile;
      const KSpan part = (shared ? range.shared_parts : range.parts)[part_of<kShares>(warp, nth)];
      const int n_tile = shared ? range.shared_tile : kMixture ? range.tile(nth) : range.n_begin + nth * c.clusters;
      for (int k = part.begin; k < part.end; ++k)
        found.push_back({at / kProducts, at % kProducts, n_tile, range.k0 + k});
    }
  }
  return found;
}
template <bool kShares, bool kMixture, bool kWhole>
void expect_one_order(const Case& c, const std::vector<WorkRange>& ranges, Tiles* all) {
  for (int warp = 0; warp < kConsumerWarps; ++warp) {
    const Tiles expected = consumers_order<kShares, kMixture, kWhole>(c, ranges, warp);
    const Tiles found = producers_order<kShares, kMixture, kWhole>(c, ranges, warp, expected.size());
    ASSERT_EQ(found.size(), expected.size()) << "warp " << warp;
    for (size_t i = 0; i < found.size(); ++i)
      ASSERT_EQ(found[i], expected[i]) << "warp " << warp << ", tile " << i << ": " << found[i].text() << " against "
                                       << expected[i].text();
    all->insert(all->end(), found.begin(), found.end());
  }
}
// Every tile of the launch once.
void expect_all_tiles(const Case& c, Tiles all, int first, int end) {
  std::ranges::sort(all);
  Tiles expected;
  for (int at = first; at < end; ++at)
    for (int n = 0; n < c.products[at % kProducts].n_tiles; ++n)
      for (int k = 0; k < c.products[at % kProducts].k_tiles; ++k)
        expected.push_back({at / kProducts, at % kProducts, n, k});
  ASSERT_EQ(all.size(), expected.size());
  for (size_t i = 0; i < all.size(); ++i) ASSERT_EQ(all[i], expected[i]) << all[i].text();
}

template <bool kShares, bool kWhole>
void check_dense(uint64_t seed) {
  Rng rng(seed, "order");
  const Case c = random_case(rng, kShares, kWhole);
  SCOPED_TRACE(fmt::format("seed {}, shares {}, whole {}, {} clusters", seed, kShares, kWhole, c.clusters));
  Tiles all;
  std::map<std::pair<int, int>, int> finished;  // by product and n tile: blocks that finish outputs of it
  for (int block = 0; block < c.blocks(); ++block) {
    const std::vector<WorkRange> ranges = ranges_of<kShares>(c, block);
    expect_one_order<kShares, false, kWhole>(c, ranges, &all);
    if (testing::Test::HasFatalFailure()) return;
    for (int p = 0; p < kProducts; ++p)
      for (int nth = 0; nth < ranges[static_cast<size_t>(p)].finished; ++nth)
        ++finished[{p, ranges[static_cast<size_t>(p)].n_begin + nth * c.clusters}];
  }
  expect_all_tiles(c, std::move(all), kWhole ? 0 : c.span.first_product,
                   kWhole ? c.span.count * kProducts : c.span.end_product);
  for (int p = 0; p < kProducts; ++p)
    for (int n = 0; n < c.products[p].n_tiles; ++n) EXPECT_EQ((finished[{p, n}]), kKSplits) << "product " << p;
}

constexpr uint64_t kSeeds = 40;

TEST(DecodeOrder, ProducersAndConsumersAgree) {
  for (uint64_t seed = 0; seed < kSeeds && !HasFailure(); ++seed) {
    check_dense<false, true>(seed);
    check_dense<false, false>(seed);
  }
}

TEST(DecodeOrder, ProducersAndConsumersAgreeWhereClustersShareTiles) {
  for (uint64_t seed = 0; seed < kSeeds && !HasFailure(); ++seed) {
    check_dense<true, true>(seed);
    check_dense<true, false>(seed);
  }
}

TEST(DecodeOrder, ProducersAndConsumersAgreeOnMixtures) {
  for (uint64_t seed = 0; seed < kSeeds && !HasFailure(); ++seed) {
    Rng rng(seed, "order");
    Case c = random_case(rng, false, true);
    c.products[kGateUp].n_tiles *= 2;  // pairs
    SCOPED_TRACE(fmt::format("seed {}, {} clusters", seed, c.clusters));
    Tiles all;
    for (int block = 0; block < c.blocks(); ++block) {
      std::vector<WorkRange> ranges(kProducts);
      for (int p = 0; p < kProducts; ++p)
        ranges[static_cast<size_t>(p)].set_mixture(p, c.products[p], block, c.blocks());
      expect_one_order<false, true, true>(c, ranges, &all);
      if (HasFatalFailure()) return;
    }
    expect_all_tiles(c, std::move(all), 0, c.span.count * kProducts);
  }
}

// Qwen3 32B on 132 multiprocessors: what is left over behind whole rounds is shared, so that no block has many more k
// tiles than another.
TEST(DecodeOrder, SharedTilesEvenOutTheBlocks) {
  Case c{.clusters = 66};
  c.span.count = 1;
  c.products[kQkv] = {.n_tiles = 160, .k_tiles = 40, .sharers = 2};
  c.products[kOut] = {.n_tiles = 80, .k_tiles = 64, .sharers = 4};
  c.products[kGateUp] = {.n_tiles = 800, .k_tiles = 40, .sharers = 8};
  c.products[kDown] = {.n_tiles = 80, .k_tiles = 200, .sharers = 4};
  const auto most_of = [&](auto shares) {
    size_t most = 0;
    for (int block = 0; block < c.blocks(); ++block) {
      size_t tiles = 0;
      for (int warp = 0; warp < kConsumerWarps; ++warp)
        tiles +=
            consumers_order<decltype(shares)::value, false, true>(c, ranges_of<decltype(shares)::value>(c, block), warp)
                .size();
      most = std::max(most, tiles);
    }
    return most;
  };
  EXPECT_EQ(most_of(std::false_type{}), 60 + 64 + 260 + 200u);
  EXPECT_EQ(most_of(std::true_type{}), 50 + 40 + 243 + 125u);
}

}  // namespace
}  // namespace fewbit::cuda::decode_step::order_test
