#pragma once
// How a product of the kernel of decode_layers_kernel.cuh is divided among its blocks and warps: arithmetic alone,
// which a test walks through on the host.
//
// A product is cut into tiles: an n tile of outputs (64, a column of the Marlin layout, or 32 rows of bytes) by a k
// tile of 128 input values (in the Marlin layout one group of scales). A pipeline stage holds one tile. The k tiles are
// split among the blocks of a cluster, the n tiles go round the clusters: neighbouring blocks read neighbouring memory
// at the same time, and a block stays within the few pages of its rows. The blocks of a cluster exchange their partial
// sums, and each of them finishes its half of the outputs of every n tile.
//
// A step takes as long as the block with the most tiles. Where that one has many more than the others, another kernel
// (kShares of a kind of weights) runs: of n tiles that are left over behind whole rounds, several clusters share each,
// a part of k for each, and their sums are handed on through device memory; and those warps of a block that have a k
// tile more than others change from n tile to n tile. It is a kernel of its own because its code is longer, and code
// that runs once a layer is fetched anew each time: 0.5 us of a layer.
#include "src/core/host_device.h"

namespace fewbit::cuda::decode_step {

inline constexpr int kConsumerWarps = 8;  // each has a producer warp of its own, which fills its ring
inline constexpr int kKSplits = 2;        // blocks of a cluster, which split k
inline constexpr int kMaxSharers = 16;    // clusters that share an n tile: their sums come in one load a thread
inline constexpr int kSharedTile = -1;    // the number of the shared n tile among those of a block, in front of its own

enum Product : int { kQkv, kOut, kGateUp, kDown, kProducts };

// The layers of a launch. Read with attention apart: it runs the products [first_product, end_product), counted through
// its layers.
struct LaunchSpan {
  int count;
  int first_product, end_product;
};

// A product in tiles; n tiles are counted through all of its weights. Of a mixture those of kGateUp go through the
// chosen experts, each n tile of gate before that of up, and the k tiles of kDown through them too: their outputs are
// one sum.
struct ProductShape {
  int n_tiles, k_tiles;
  int sharers;  // clusters for each n tile that is left over behind whole rounds; 1: it is one cluster's
};

// K tiles from the block's first on. The consumer warps of a block divide them into as many parts; sums are added in
// the order of the parts, so that no bit depends on who had which.
struct KSpan {
  int begin, end;
};

// The part of k that a warp has of the nth n tile of a block, or of the one that its cluster shares. Longer parts stand
// behind shorter ones: of the shared n tile they go to the warps that have shorter ones of the block's first.
template <bool kShares>
FEWBIT_HD int part_of(int warp, int nth) {
  if (!kShares) return warp;
  return nth == kSharedTile ? kConsumerWarps - 1 - warp : (warp + nth) % kConsumerWarps;
}

// The tiles of a product that a block works on.
struct WorkRange {
  int k0, k_count;       // k tiles
  int n_begin, n_count;  // n tiles n_begin, n_begin + n_step, ...
  int n_step;
  int paired;  // of a mixture: those are pairs of n tiles
  // The n tile that the cluster shares (-1: none), its number among the sharers, and the n tiles that the cluster
  // finishes: its own, and the shared one if it is the first of the sharers.
  int shared_tile, sharer, finished;
  KSpan parts[kConsumerWarps], shared_parts[kConsumerWarps];  // of an own n tile, of the shared one

  // Of a mixture: the range's n tile of that number.
  FEWBIT_HD int tile(int nth) const {
    return paired ? 2 * (n_begin + (nth >> 1) * n_step) + (nth & 1) : n_begin + nth * n_step;
  }
  FEWBIT_HD static void set_parts(KSpan (&of)[kConsumerWarps], int begin, int count) {
#ifdef __CUDA_ARCH__
#pragma unroll 1
#endif
    for (int i = 0; i < kConsumerWarps; ++i)
      of[i] = {begin + count * i / kConsumerWarps, begin + count * (i + 1) / kConsumerWarps};
  }
  // Of a mixture, for a block. Sums of q, k, v, gates and ups need no exchange: a block has all of k, and both n tiles
  // of a gate and its up, so that it can apply the activation.
  FEWBIT_HD void set_mixture(int product, const ProductShape& shape, int block, int blocks) {
    if (product == kOut || product == kDown)
      return set<false>(shape, block % kKSplits, block / kKSplits, blocks / kKSplits);
    paired = product == kGateUp, shared_tile = -1;
    const int all = paired ? shape.n_tiles / 2 : shape.n_tiles;
    k0 = 0, k_count = shape.k_tiles;
    n_begin = block, n_step = blocks;
    n_count = n_begin < all ? (all - n_begin + blocks - 1) / blocks : 0;
    if (paired) n_count *= 2;
    set_parts(parts, 0, k_count);
  }
  template <bool kShares>
  FEWBIT_HD void set(const ProductShape& shape, int k_split, int cluster, int of_clusters) {
    paired = 0, n_step = of_clusters, n_begin = cluster, shared_tile = -1;
    k0 = k_split * shape.k_tiles / kKSplits;
    k_count = (k_split + 1) * shape.k_tiles / kKSplits - k0;
    set_parts(parts, 0, k_count);
    const int whole = kShares && shape.sharers > 1 ? shape.n_tiles / of_clusters * of_clusters : shape.n_tiles;
    n_count = cluster < whole ? (whole - cluster + of_clusters - 1) / of_clusters : 0;
    finished = n_count;
    const int left = shape.n_tiles - whole;
    if (!kShares || left == 0 || cluster >= left * shape.sharers) return;
    sharer = cluster / left, shared_tile = whole + cluster % left;
    finished += sharer == 0;
    const int begin = k_count * sharer / shape.sharers;
    set_parts(shared_parts, begin, k_count * (sharer + 1) / shape.sharers - begin);
  }
};

}  // namespace fewbit::cuda::decode_step
