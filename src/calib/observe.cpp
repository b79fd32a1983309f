#include "src/calib/observe.h"

#include <algorithm>
#include <cmath>

#include "kernels/exec/upload.h"
#include "kernels/model/add.h"
#include "kernels/model/cast.h"
#include "kernels/statistics/column_stats.h"
#include "src/run/moe.h"

namespace fewbit {

InputRounding rounding_of(const QuantSpec& spec, float percentile) {
  const std::optional<RowQuant> q = input_quant(spec, 1.f);
  if (!q) return {};
  return {.activations = spec.activations, .rows = *q, .percentile = percentile};
}

InputRange::InputRange(Exec& ex, const InputRounding& r, int64_t tokens, int64_t in)
    : ex_(ex), rounding_(r), step_(std::max<int64_t>(1, (tokens + kSampleTokens - 1) / kSampleTokens)) {
  absmax_ = ex.alloc_zeros(DType::f32, {in});
  abssum_ = ex.alloc_zeros(DType::f64, {in});
}

void InputRange::add(ConstTensorView x) {
  if (rounding_.percentile >= 100) {
    if (x.rows() > 0) column_stats(ex_, x, {}, absmax_, abssum_);
    return;
  }
  std::vector<int32_t> at;
  for (int64_t r = (seen_ + step_ - 1) / step_ * step_; r < seen_ + x.rows(); r += step_)
    at.push_back(static_cast<int32_t>(r - seen_));
  seen_ += x.rows();
  if (at.empty()) return;
  const auto rows = static_cast<int64_t>(at.size());
  const Tensor sample = ex_.alloc(DType::f32, {rows, x.cols()});
  cast(ex_, gather_rows(ex_, x, ex_.to_device(Tensor::host_from<int32_t>(DType::i32, {rows}, at))), sample);
  const Tensor host = ex_.to_host(sample);
  for (int64_t i = 0; i < host.numel(); ++i) magnitudes_.push_back(std::fabs(host.as<float>()[i]));
}

float InputRange::scale() {
  float most = 0;
  if (rounding_.percentile < 100 && !magnitudes_.empty()) {
    const double last = static_cast<double>(magnitudes_.size() - 1);
    const auto nth = magnitudes_.begin() + std::llround(rounding_.percentile / 100.0 * last);
    std::nth_element(magnitudes_.begin(), nth, magnitudes_.end());
    most = *nth;
    const float largest = *std::max_element(nth, magnitudes_.end());
    reach_ = largest > 0 ? most / largest : 1;
  } else if (rounding_.percentile >= 100) {
    const Tensor host = ex_.to_host(absmax_);
    most = *std::max_element(host.as<float>(), host.as<float>() + host.numel());
  }
  if (!(most > 0)) return 1;
  // Of groups in E4M3. What lies up to twice above the calibration's largest value is not cut off by a power of two.
  if (rounding_.rows.scales != DType::f32) return std::max(static_cast<float>(nvfp4_global_scale(most)), 0x1p-126f);
  return most / (rounding_.rows.codes == DType::i8 ? 127.f : 448.f);
}

Tensor spread_rows(Exec& ex, ConstTensorView x, int64_t count) {
  count = std::min(count, x.rows());
  Tensor some = ex.alloc(x.dtype, {count, x.cols()});
  for (int64_t k = 0; k < count; ++k) {
    const int64_t from = spread_row(k, count, x.rows());
    ex.copy(x.row_range(from, from + 1), some.view().row_range(k, k + 1));
  }
  return some;
}

InputSums::InputSums(Exec& ex, const InputSumsOf& of, const InputRounding& rounding, float input_scale,
                     const Ranks& ranks, bool beside)
    : ex_(ex),
      rounding_(rounding),
      error_factor_(of.error_factor),
      share_(ex, ranks, of.in, beside, of.out),
      cutter_(ex, 0, [this](const InputRows& rows) { sum(rows); }),
      lone_cutter_(ex, 0, [this](const InputRows& rows) { sum(rows); }) {
  stats_.gram = ex.alloc_zeros(DType::f32, {of.in, of.in});
  if (of.cross) stats_.cross = ex.alloc_zeros(DType::f32, {of.in, of.in});
  if (of.out > 0) stats_.residual = ex.alloc_zeros(DType::f32, {of.out, of.in});
  if (rounding.activations == ActQuant::tensor) stats_.input_scale = input_scale;
}

void InputSums::add(const InputRows& rows) {
  if (rows.x.rows() == 0) return;
  count(rows);
  (is_lone(rows) ? lone_cutter_ : cutter_).add(rows);
}

void InputSums::add_piece(const InputRows& rows) {
  count(rows);
  sum(rows);
}

void InputSums::count(const InputRows& rows) {
  FEWBIT_ASSERT(!rows.full.data || !stats_.cross.empty());
  FEWBIT_ASSERT(stats_.residual.empty() == (rows.error.data == nullptr));
  if (is_lone(rows)) lone_ += rows.x.rows();
  if (rounding_.activations != ActQuant::none) sample(rows.x);
  stats_.tokens += rows.x.rows();
}

// The first kSampleTokens rows, as they are before they are rounded.
void InputSums::sample(ConstTensorView x) {
  const int64_t rows = std::min(x.rows(), kSampleTokens - stats_.tokens);
  if (rows <= 0) return;
  if (sample_.empty()) sample_ = ex_.alloc(x.dtype, {kSampleTokens, x.cols()});
  ex_.copy(x.row_range(0, rows), sample_.view().row_range(stats_.tokens, stats_.tokens + rows));
}

void InputSums::sum(const InputRows& rows) {
  InputRows seen = rows;
  Tensor rounded;
  if (rounding_.activations != ActQuant::none) {
    rounded = ex_.alloc(rows.x.dtype, rows.x.shape);
    RowQuant q = rounding_.rows;
    q.fixed = stats_.input_scale;
    round_rows(ex_, rows.x, q, rounded);
    seen.x = rounded;
  }
  if (is_lone(rows) && lone_gram_.empty()) lone_gram_ = ex_.alloc_zeros(DType::f32, stats_.gram.shape());
  share_.add(seen, is_lone(rows) ? lone_gram_ : stats_.gram, stats_.cross, stats_.residual);
}

// The sums of all rows. With G and C the Gram matrix and the cross sums of n rows that have both streams, and L the
// Gram matrix of the rows that have one, C - G is the sum of (x_full - x) x^T, which all N rows are taken to have N / n
// times. So the shift of targets knows the difference of the streams from the same rows, and not from one half's mean
// against the other's.
void InputSums::join_lone() {
  FEWBIT_ASSERT(lone_ < stats_.tokens && stats_.residual.empty());
  const float times = static_cast<float>(stats_.tokens) / static_cast<float>(stats_.tokens - lone_);
  scale_by(ex_, upload(ex_, std::vector<float>{times}), stats_.cross);
  fewbit::add(ex_, stats_.gram, stats_.cross, 1 - times);
  fewbit::add(ex_, lone_gram_, stats_.cross, 1);
  fewbit::add(ex_, lone_gram_, stats_.gram, 1);
  lone_gram_.reset();
}

InputStats InputSums::finish() {
  cutter_.finish();
  lone_cutter_.finish();
  share_.finish_gram(stats_.gram);
  if (stats_.cross) share_.finish_cross(stats_.cross);
  if (lone_ > 0) {
    share_.finish_gram(lone_gram_);
    join_lone();
  }
  if (stats_.residual) {
    share_.finish_errors(stats_.residual);
    scale_by(ex_, upload(ex_, std::vector<float>{error_factor_}), stats_.residual);
  }
  if (sample_) {
    const int64_t rows = std::min(stats_.tokens, kSampleTokens);
    stats_.sample = ex_.alloc(sample_.dtype(), {rows, sample_.cols()});
    ex_.copy(sample_.view().row_range(0, rows), stats_.sample);
    sample_.reset();
  }
  return std::move(stats_);
}

void SpreadRuns::pick(const InputRows& rows, const std::function<void(const InputRows&)>& see) {
  const int64_t begin = seen_, end = seen_ + rows.x.rows(), period = stride_ * kRun;
  seen_ = end;
  if (stride_ == 1) return see(rows);
  for (int64_t run = begin / period * period; run < end; run += period) {
    const int64_t from = std::max(run, begin) - begin, to = std::min(run + kRun, end) - begin;
    const auto part = [&](ConstTensorView v) { return v.data ? v.row_range(from, to) : v; };
    if (from < to) see({part(rows.x), part(rows.full), part(rows.error)});
  }
}

InputStats observe_input(Exec& ex, const EachChunk& each, int64_t tokens, const InputSumsOf& of,
                         const InputRounding& rounding, const Ranks& ranks, int64_t summed) {
  float scale = 1, reach = 1;
  if (rounding.activations == ActQuant::tensor) {
    InputRange range(ex, rounding, tokens, of.in);
    each([&](const InputRows& rows) { range.add(rows.x); });
    scale = range.scale();
    reach = range.reach();
  }
  InputSums sums(ex, of, rounding, scale, ranks, true);
  SpreadRuns runs(tokens, summed);
  each([&](const InputRows& rows) {
    const InputRows wanted{rows.x, of.cross ? rows.full : ConstTensorView{},
                           of.out > 0 ? rows.error : ConstTensorView{}};
    runs.pick(wanted, [&](const InputRows& some) { sums.add(some); });
  });
  InputStats stats = sums.finish();
  stats.input_reach = reach;
  return stats;
}

InputStats observe_input(Exec& ex, const InputRows& rows, const InputRounding& rounding) {
  return observe_input(
      ex, [&](const auto& see) { see(rows); }, rows.x.rows(),
      {.in = rows.x.cols(), .cross = rows.full.data != nullptr, .out = rows.error.data ? rows.error.cols() : 0},
      rounding);
}

}  // namespace fewbit
