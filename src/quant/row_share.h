#pragma once
// RowShare: the output rows of a linear divided among the ranks. Given the statistics of its input, the rows of a
// linear are quantized independently of each other: each rank takes a band, what depends on all rows (a sum, a
// decision) is made of the bands, and the codes are gathered. Bands begin where blocks of rows begin in the products
// over them (kRowUnit), so that a row has the bits that it has where one process takes all; on a GPU products have the
// same kernel for any number of rows (kernels/device/row_product.cuh).
#include "kernels/exec/exec.h"
#include "kernels/exec/panel_share.h"
#include "src/core/quantized_linear.h"
#include "src/ranks/ranks.h"

namespace fewbit {

inline constexpr int64_t kRowUnit = 64;  // a multiple of every op's block of rows on the CPU

class RowShare {
 public:
  RowShare() = default;  // all rows are this process's
  // A linear of `out` rows that is rounded to `spec`. One with fewer units than ranks is every rank's own.
  RowShare(const Exec&, const Ranks&, int64_t out, const QuantSpec& spec);
  static const RowShare& none();

  bool alone() const { return begin_.empty(); }
  ConstTensorView mine(ConstTensorView whole) const;
  // Collective: the rows of all ranks, in host memory or on the device. A row of `band` stands for `unit` rows of the
  // linear.
  Tensor whole(Exec&, Tensor band, int64_t unit = 1) const;
  Tensor whole(Tensor band, int64_t unit = 1) const;  // in host memory
  void gather(QuantizedLinear& q) const;
  // Those who share the factor of the linear's statistics: the ranks that share its rows.
  PanelShare panels() const;
  // Collective: whether it holds for every rank's rows; the sum of their counts.
  bool everywhere(bool here) const;
  int64_t sum(int64_t here) const;
  // Collective: the sum of f64 values on the device, one for each row, in the order of the rows.
  double sum_of(Exec&, ConstTensorView band) const;

 private:
  const Ranks* ranks_ = nullptr;
  bool on_cuda_ = false;
  std::vector<int64_t> begin_{};  // of the bands; empty where nothing is shared
};

}  // namespace fewbit
