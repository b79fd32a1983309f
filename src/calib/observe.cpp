#include "src/calib/observe.h"

#include <algorithm>

#include "kernels/column_stats.h"
#include "kernels/gram.h"
#include "src/run/linear.h"

namespace fewbit {
namespace {

// The largest |x| on the scale of the codes' largest; 1 where everything is zero.
float static_scale(Exec& ex, ConstTensorView x, DType codes) {
  const Tensor absmax = ex.alloc_zeros(DType::f32, {x.cols()}), abssum = ex.alloc_zeros(DType::f64, {x.cols()});
  if (x.rows() > 0) column_stats(ex, x, {}, absmax, abssum);
  const Tensor host = ex.to_host(absmax);
  const float most = *std::max_element(host.as<float>(), host.as<float>() + host.numel());
  return most > 0 ? most / (codes == DType::i8 ? 127.f : 448.f) : 1.f;
}

}  // namespace

InputRounding rounding_of(const QuantSpec& spec) {
  const std::optional<RowQuant> q = input_quant(spec, 1.f);
  if (!q) return {};
  return {.activations = spec.activations, .codes = q->codes, .group = q->group};
}

InputStats observe_input(Exec& ex, ConstTensorView x, ConstTensorView x_full, const InputRounding& rounding) {
  const int64_t in = x.shape[1];
  InputStats s;
  s.tokens = x.rows();
  s.gram = ex.alloc_zeros(DType::f32, {in, in});
  if (x_full.data) s.cross = ex.alloc_zeros(DType::f32, {in, in});
  if (rounding.activations == ActQuant::tensor) s.input_scale = static_scale(ex, x, rounding.codes);
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
