#include "src/quant/loop/activation_sums.h"

#include <algorithm>

#include "kernels/statistics/column_stats.h"

namespace fewbit {

ActivationSums::ActivationSums(Exec& ex, const Ranks& ranks, int64_t rows, int64_t in)
    : ex_(ex), rows_(rows), share_(ex, ranks, in), cutter_(ex, [this](ConstTensorView x, ConstTensorView) {
        share_.add(x, {}, stats_.input.gram, {});
        column_stats(ex_, x, {}, stats_.absmax, stats_.abssum);
      }) {
  stats_.input.gram = ex.alloc_zeros(DType::f32, {in, in});
  stats_.absmax = ex.alloc_zeros(DType::f32, {in});
  stats_.abssum = ex.alloc_zeros(DType::f64, {in});
}

// Rows at even distances of all that will have come.
void ActivationSums::sample(ConstTensorView x) {
  const int64_t count = std::min(kTransformSample, rows_), seen = stats_.input.tokens;
  if (stats_.sample.empty()) stats_.sample = ex_.alloc(x.dtype, {count, x.cols()});
  for (; sampled_ < count; ++sampled_) {
    const int64_t at = spread_row(sampled_, count, rows_) - seen;
    if (at >= x.rows()) return;
    ex_.copy(x.row_range(at, at + 1), stats_.sample.view().row_range(sampled_, sampled_ + 1));
  }
}

void ActivationSums::add(ConstTensorView x) {
  if (x.rows() == 0) return;
  sample(x);
  stats_.input.tokens += x.rows();
  cutter_.add(x, {});
}

ActivationStats ActivationSums::finish() {
  FEWBIT_ASSERT(stats_.input.tokens == rows_);
  cutter_.finish();
  share_.finish_gram(stats_.input.gram);
  return std::move(stats_);
}

}  // namespace fewbit
