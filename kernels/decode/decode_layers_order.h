#pragma once
// In which order a producer warp comes to its tiles. The consumer warp whose ring it fills has the same order in its
// own loops (decode_layers_product.cuh); a test holds the two against each other on the host, since a step in which
// they differ computes nonsense and none of the CPU's own tests would see it.
#include "kernels/decode/decode_layers_tiles.h"

namespace fewbit::cuda::decode_step {

// The order of a warp's tiles: along k, then over the n tiles (a shared one first, so that its sums are under way while
// the block is at its own), products and layers, through all layers or (not kWhole) the products that the span names.
template <bool kShares, bool kMixture, bool kWhole>
struct TileOrder {
  const LaunchSpan& span;
  const WorkRange* ranges;  // [kProducts]
  int warp;
  int layer = 0, product = -1;
  int nth = 0, n_tile = 0;        // the n tile at hand: its number among the block's, and in the product
  int begin = 0, k = 0, end = 0;  // the warp's k tiles of it, and the one at hand

  FEWBIT_HD TileOrder(const LaunchSpan& of_launch, const WorkRange* in_ranges, int of_warp)
      : span(of_launch), ranges(in_ranges), warp(of_warp) {
    if constexpr (!kWhole) product = span.first_product - 1;
    next_product();
  }
  FEWBIT_HD bool done() const { return kWhole ? layer == span.count : layer * kProducts + product >= span.end_product; }
  // Goes on to the next tile; true where that is the first of an n tile.
  FEWBIT_HD bool next() {
    if (++k < end) return false;
    const WorkRange& range = ranges[product];
    ++nth;
    if constexpr (kShares) {
      set_part(range);
      if (!find_n_tile(range)) return next_product();
    } else {
      if (nth == range.n_count) return next_product();
      n_tile = kMixture ? range.tile(nth) : n_tile + range.n_step;
    }
    k = begin;
    return true;
  }

 private:
  // To the first tile of the next product in which the warp has any; false behind the last.
  FEWBIT_HD bool next_product() {
    bool any;
    do {
      if (++product == kProducts) product = 0, ++layer;
      if (done()) return false;
      const WorkRange& range = ranges[product];
      nth = kShares && range.shared_tile >= 0 ? kSharedTile : 0;
      n_tile = kMixture ? range.tile(0) : range.n_begin;
      set_part(range);
      any = kShares ? find_n_tile(range) : range.n_count > 0 && begin < end;
    } while (!any);
    k = begin;
    return true;
  }
  FEWBIT_HD void set_part(const WorkRange& range) {
    const int part = part_of<kShares>(warp, nth);
    const KSpan own = (kShares && nth == kSharedTile ? range.shared_parts : range.parts)[part];
    begin = range.k0 + own.begin, end = range.k0 + own.end;
  }
  // At the n tile at hand, or at the first behind it of which the warp has k tiles; false where none is left.
  FEWBIT_HD bool find_n_tile(const WorkRange& range) {
    while (nth < range.n_count && begin == end) ++nth, set_part(range);
    n_tile = nth == kSharedTile ? range.shared_tile : range.n_begin + nth * range.n_step;
    return nth < range.n_count;
  }
};

}  // namespace fewbit::cuda::decode_step
