#include "src/quant/loop/activation_sums.h"

#include <algorithm>

#include "kernels/statistics/column_stats.h"
#include "src/run/moe.h"

namespace fewbit {

ActivationSums::ActivationSums(Exec& ex, const Ranks& ranks, int64_t rows, int64_t in, bool beside, int64_t piece)
    : ex_(ex), rows_(rows), share_(ex, ranks, in, beside), cutter_(ex, piece, [this](const InputRows& rows) {
        share_.add(rows, stats_.input.gram);
        column_stats(ex_, rows.x, {}, stats_.absmax, stats_.abssum);
      }) {
  stats_.input.gram = ex.alloc_zeros(DType::f32, {in, in});
  stats_.absmax = ex.alloc_zeros(DType::f32, {in});
  stats_.abssum = ex.alloc_zeros(DType::f64, {in});
}

// Rows at even distances of all that will have come.
void ActivationSums::sample(ConstTensorView x) {
  const int64_t count = std::min(kTransformSample, rows_), seen = stats_.input.tokens;
  if (stats_.sample.empty()) stats_.sample = ex_.alloc(x.dtype, {count, x.cols()});
  std::vector<int32_t> at;
  for (int64_t k = sampled_; k < count && spread_row(k, count, rows_) < seen + x.rows(); ++k)
    at.push_back(static_cast<int32_t>(spread_row(k, count, rows_) - seen));
  if (at.empty()) return;
  const auto some = static_cast<int64_t>(at.size());
  const Tensor rows = ex_.to_device(Tensor::host_from<int32_t>(DType::i32, {some}, at));
  ex_.copy(gather_rows(ex_, x, rows), stats_.sample.view().row_range(sampled_, sampled_ + some));
  sampled_ += some;
}

void ActivationSums::add(ConstTensorView x) {
  if (x.rows() == 0) return;
  sample(x);
  stats_.input.tokens += x.rows();
  cutter_.add({x});
}

ActivationStats ActivationSums::finish() {
  FEWBIT_ASSERT(stats_.input.tokens == rows_);
  cutter_.finish();
  share_.finish_gram(stats_.input.gram);
  return std::move(stats_);
}

}  // namespace fewbit
