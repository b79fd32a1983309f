#pragma once
// GramShare: the sums of an input's outer products divided among the ranks by bands of rows. Every rank sees all rows
// of the input in the order of one process; each adds to the tiles of its band, which have the bits that they would
// have there (kernels/statistics/gram.h), and in the end all have the whole.
#include <vector>

#include "kernels/statistics/gram_lanes.h"
#include "src/calib/input_stats.h"
#include "src/ranks/ranks.h"

namespace fewbit {

class GramShare {
 public:
  // `beside`: the sums may use streams of their own (GramLanes::kBytes).
  // `out`: features of errors, where there are some.
  GramShare(Exec& ex, const Ranks& ranks, int64_t in, bool beside = false, int64_t out = 0);
  // g += x^T x, its half, and where there are such rows d += full^T x and e += error^T x.
  void add(const InputRows&, TensorView g, TensorView d = {}, TensorView e = {}) const;
  // Collective: the sums are complete, both halves of g.
  void finish_gram(TensorView g) const;
  void finish_cross(TensorView d) const;
  void finish_errors(TensorView e) const;

 private:
  RowBand mine(const std::vector<int64_t>& begin) const;

  Exec& ex_;
  const Ranks& ranks_;
  GramLanes lanes_;
  std::vector<int64_t> half_{}, whole_{}, errors_{};  // begins of the ranks' bands, [ranks + 1]
};

// Begins of bands of whole tiles with about equal parts of the half that the device computes of an [n, n] matrix.
std::vector<int64_t> half_bands(Device::Kind kind, int64_t n, int parts);

}  // namespace fewbit
