#include "src/calib/observe.h"

#include <algorithm>
#include <cmath>

#include "kernels/model/cast.h"
#include "kernels/statistics/column_stats.h"
#include "kernels/statistics/gram.h"
#include "src/run/moe.h"

namespace fewbit {
namespace {

float largest(Exec& ex, ConstTensorView x) {
  const Tensor absmax = ex.alloc_zeros(DType::f32, {x.cols()}), abssum = ex.alloc_zeros(DType::f64, {x.cols()});
  column_stats(ex, x, {}, absmax, abssum);
  const Tensor host = ex.to_host(absmax);
  return *std::max_element(host.as<float>(), host.as<float>() + host.numel());
}

// The percentile of |x| over evenly spaced tokens.
float percentile_of(Exec& ex, ConstTensorView x, float percentile) {
  const int64_t step = (x.rows() + kSampleTokens - 1) / kSampleTokens, rows = (x.rows() + step - 1) / step;
  const Tensor at = Tensor::host(DType::i32, {rows});
  for (int64_t r = 0; r < rows; ++r) at.as<int32_t>()[r] = static_cast<int32_t>(r * step);
  const Tensor sample = ex.alloc(DType::f32, {rows, x.cols()});
  cast(ex, gather_rows(ex, x, ex.to_device(at)), sample);
  const Tensor host = ex.to_host(sample);
  float* v = host.as<float>();
  for (int64_t i = 0; i < host.numel(); ++i) v[i] = std::fabs(v[i]);
  const double last = static_cast<double>(host.numel() - 1);
  float* nth = v + static_cast<int64_t>(std::llround(percentile / 100.0 * last));
  std::nth_element(v, nth, v + host.numel());
  return *nth;
}

// What a static scale must reach, on the scale of the largest code; 1 where everything is zero.
float static_scale(Exec& ex, ConstTensorView x, const InputRounding& r) {
  if (x.rows() == 0) return 1;
  const float most = r.percentile < 100 ? percentile_of(ex, x, r.percentile) : largest(ex, x);
  return most > 0 ? most / (r.codes == DType::i8 ? 127.f : 448.f) : 1.f;
}

}  // namespace

InputRounding rounding_of(const QuantSpec& spec, float percentile) {
  const std::optional<RowQuant> q = input_quant(spec, 1.f);
  if (!q) return {};
  return {.activations = spec.activations, .codes = q->codes, .group = q->group, .percentile = percentile};
}

Tensor spread_rows(Exec& ex, ConstTensorView x, int64_t count) {
  count = std::min(count, x.rows());
  Tensor some = ex.alloc(x.dtype, {count, x.cols()});
  for (int64_t k = 0; k < count; ++k) {
    const int64_t from = k * x.rows() / count;
    ex.copy(x.row_range(from, from + 1), some.view().row_range(k, k + 1));
  }
  return some;
}

InputStats observe_input(Exec& ex, ConstTensorView x, ConstTensorView x_full, const InputRounding& rounding) {
  const int64_t in = x.shape[1];
  InputStats s;
  s.tokens = x.rows();
  s.gram = ex.alloc_zeros(DType::f32, {in, in});
  if (x_full.data) s.cross = ex.alloc_zeros(DType::f32, {in, in});
  if (rounding.activations == ActQuant::tensor) s.input_scale = static_scale(ex, x, rounding);
  if (s.tokens == 0) return s;
  Tensor rounded;
  ConstTensorView seen = x;
  if (rounding.activations != ActQuant::none) {
    const ConstTensorView first = x.row_range(0, std::min(s.tokens, kSampleTokens));
    s.sample = ex.alloc(x.dtype, first.shape);
    ex.copy(first, s.sample);
    rounded = ex.alloc(x.dtype, x.shape);
    round_rows(ex, x, {.codes = rounding.codes, .fixed = s.input_scale, .group = rounding.group}, rounded);
    seen = rounded;
  }
  gram(ex, seen, s.gram);
  if (x_full.data) cross_gram(ex, x_full, seen, s.cross);
  return s;
}

}  // namespace fewbit
