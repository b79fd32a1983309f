#include "src/quant/loop/measure.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/model/cast.h"
#include "kernels/products/gemm_in_terms.h"
#include "kernels/statistics/column_stats.h"
#include "kernels/statistics/gram_loss.h"
#include "kernels/statistics/squared_error.h"
#include "src/quant/rounding.h"
#include "src/ranks/exchange.h"

namespace fewbit {
namespace {

constexpr float kLargestF8 = 448;  // of E4M3

// ||W x - Q round(x)|| / ||W x|| over the rows of x.
double output_error(Exec& ex, const Tensor& w, const Tensor& q, const RowQuant& rounding, const Tensor& sample) {
  Tensor x = ex.alloc(DType::f32, sample.shape());
  cast(ex, sample, x);
  const Tensor full = ex.alloc(DType::f32, {x.rows(), w.rows()}), rounded = ex.alloc(DType::f32, full.shape());
  gemm_in_terms(ex, x, w, full);
  round_rows(ex, x, rounding, x);
  gemm_in_terms(ex, x, q, rounded);
  const Tensor rows = ex.alloc(DType::f64, {x.rows()});
  squared_error(ex, full, {}, rows);
  const double signal = sum_of(ex, rows);
  squared_error(ex, full, rounded, rows);
  return signal <= 0 ? 0 : std::sqrt(sum_of(ex, rows) / signal);  // NaN stays NaN
}

}  // namespace

void measure(Exec& ex, const Tensor& w, const Tensor& values, const std::optional<RowQuant>& rounding,
             const InputStats* stats, LinearRecord& record, const RowShare& rows, std::optional<double> loss) {
  const ConstTensorView mine = rows.mine(w), taken = rows.mine(values);
  const Tensor by_row = ex.alloc(DType::f64, {mine.rows()});
  const auto total = [&](ConstTensorView b) {
    squared_error(ex, mine, b, by_row);
    return rows.sum_of(ex, by_row);
  };
  const double energy = total({}), error = total(taken);
  record.sqnr_db = error > 0 ? 10 * std::log10(energy / error) : std::numeric_limits<double>::max();
  record.rel_error = energy <= 0 ? 0 : std::sqrt(error / energy);
  if (!stats) return;
  if (rounding && stats->sample) {
    record.rel_error = output_error(ex, w, values, *rounding, stats->sample);
    return;
  }
  const auto output = [&](ConstTensorView b, LossSums sums) {
    gram_loss(ex, mine, b, stats->gram, by_row, sums);
    return rows.sum_of(ex, by_row);
  };
  const double signal = output(ex.alloc_zeros(DType::f32, mine.shape), LossSums::f32);
  if (signal <= 0) {  // NaN goes on, and stays NaN
    record.rel_error = 0;
    return;
  }
  const double noise = loss ? *loss * static_cast<double>(stats->tokens) : output(taken, LossSums::reported);
  record.rel_error = std::sqrt(std::max(noise, 0.0) / signal);
}

void measure(Exec& ex, const Tensor& w, const QuantizedLinear& codes, const DeviceCodes& there, const InputStats* stats,
             LinearRecord& record, const RowShare& rows, std::optional<double> loss) {
  const Tensor values =
      there.codes.empty() ? values_of(ex, codes, DType::f32) : values_of(ex, there, codes.spec, DType::f32);
  measure(ex, w, values, input_quant(codes.spec, codes.input_scale), stats, record, rows, loss);
}

void KvRange::Largest::add(Exec& ex, ConstTensorView x) {
  if (absmax.empty()) {
    absmax = ex.alloc_zeros(DType::f32, {x.cols()});
    abssum = ex.alloc_zeros(DType::f64, {x.cols()});
  }
  column_stats(ex, x, {}, absmax, abssum);
}

// The largest magnitude that any rank saw; the least normal number where all are zero.
float KvRange::Largest::value(Exec& ex, const Ranks& ranks) const {
  const Tensor host = absmax.empty() ? Tensor::host_zeros(DType::f32, {1}) : ex.to_host(absmax);
  const float here = *std::max_element(host.as<float>(), host.as<float>() + host.numel());
  return std::max(largest_of_all(ranks, here), std::numeric_limits<float>::min() * kLargestF8);
}

void KvRange::add(Exec& ex, ConstTensorView keys, ConstTensorView values) {
  keys_.add(ex, keys);
  values_.add(ex, values);
}

KvScales KvRange::scales(Exec& ex, const Ranks& ranks) const {
  return {.k = {keys_.value(ex, ranks) / kLargestF8}, .v = {values_.value(ex, ranks) / kLargestF8}};
}

}  // namespace fewbit
