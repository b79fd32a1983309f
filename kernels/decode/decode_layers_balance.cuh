#pragma once
// Which n tiles of a layer's products several clusters share (decode_layers_tiles.h).
#include <algorithm>

#include "kernels/decode/decode_layers_job.cuh"

namespace fewbit::cuda::decode_step {

// Once the stages of the rings are known: sets ProductShape::sharers; false where every n tile stays with one cluster.
// Sharing pays where the block with the most k tiles of a layer has over a tenth more than the mean: by 3.5 % of the
// step where it has 1.29 times as many (Qwen3 32B), nothing where it has 1.05 (70B). A product takes no part where all
// of a block's k tiles fit the rings, and so are there before it begins, and where clusters have no n tile of their
// own, behind which the sums can travel. A mixture shares none: no barrier of the grid stands between products that
// would use the same words.
inline bool share_n_tiles(Job& job, int clusters) {
  if (job.experts > 0) return false;
  int64_t most = 0, all = 0;  // k tiles of a block, of a cluster's blocks together
  for (const ProductShape& p : job.product) {
    most += int64_t{(p.n_tiles + clusters - 1) / clusters} * p.k_tiles;
    all += int64_t{p.n_tiles} * p.k_tiles;
  }
  if (10 * most * clusters <= 11 * all) return false;
  bool any = false;
  for (ProductShape& p : job.product) {
    const int left = p.n_tiles % clusters, rounds = p.n_tiles / clusters, k_tiles = p.k_tiles / kKSplits;
    if (left == 0 || rounds == 0 || (rounds + 1) * k_tiles <= kConsumerWarps * job.stages) continue;
    p.sharers = std::clamp(std::min(clusters / left, k_tiles), 1, kMaxSharers);
    any = any || p.sharers > 1;
  }
  return any;
}
// Bytes of Job::shared_sums.
inline size_t shared_sum_bytes(const Job& job, int clusters, const WeightKind& kind) {
  size_t most = 0;
  for (const ProductShape& p : job.product)
    if (p.sharers > 1)
      most = std::max(most, sizeof(float) * kKSplits * (p.n_tiles % clusters) * p.sharers * kind.outputs);
  return most;
}

}  // namespace fewbit::cuda::decode_step
