#include "src/quant/router_fit.h"

#include <cmath>
#include <numeric>

#include "kernels/cast.h"
#include "kernels/factor.h"
#include "kernels/gemm.h"
#include "kernels/matrix_edit.h"
#include "kernels/squared_error.h"
#include "src/calib/observe.h"
#include "src/quant/rounding.h"

namespace fewbit {
namespace {

Tensor as(Exec& ex, ConstTensorView from, DType dtype) {
  Tensor t = ex.alloc(dtype, from.shape);
  cast(ex, from, t);
  return t;
}

Tensor product(Exec& ex, const Tensor& x, const Tensor& w) {
  Tensor y = ex.alloc(DType::f32, {x.rows(), w.rows()});
  gemm(ex, x, w, {}, y);
  return y;
}

double distance(Exec& ex, const Tensor& a, ConstTensorView b) {
  const Tensor rows = ex.alloc(DType::f64, {a.rows()});
  squared_error(ex, a, b, rows);
  return std::sqrt(sum_of(ex, rows));
}

}  // namespace

RouterFit fit_router(Exec& ex, ConstTensorView stored, ConstTensorView x, ConstTensorView x_full, float damp) {
  RouterFit fit;
  const int64_t tokens = x.rows(), in = x.cols(), seen = tokens - tokens / 8;
  if (seen < kRouterTokensPerFeature * in || seen == tokens) return fit;
  const InputStats stats = observe_input(ex, x.row_range(0, seen), x_full.row_range(0, seen), {});
  const Tensor w = as(ex, stored, DType::f32), held = as(ex, x.row_range(seen, tokens), DType::f32),
               full = as(ex, x_full.row_range(seen, tokens), DType::f32);
  const Tensor wanted = product(ex, full, w);
  const double energy = distance(ex, wanted, {});
  if (!(energy > 0)) return fit;
  fit.error_before = fit.error = distance(ex, wanted, product(ex, held, w)) / energy;

  const Tensor d = ex.alloc(DType::f32, {in});
  diagonal(ex, stats.gram, d);
  const Tensor host = ex.to_host(d);
  const double sum = std::accumulate(host.as<float>(), host.as<float>() + in, 0.0);
  const Tensor target = ex.alloc(DType::f32, w.shape());
  const auto lambda = static_cast<float>(damp * sum / static_cast<double>(in));
  if (!shift_targets(ex, w, stats.cross, stats.gram, lambda, target).ok() || count_nonfinite(ex, target) > 0) return fit;
  Tensor rounded = as(ex, target, stored.dtype);
  const double error = distance(ex, wanted, product(ex, held, as(ex, rounded, DType::f32))) / energy;
  if (!(error < fit.error)) return fit;
  fit.error = error;
  fit.weight = std::move(rounded);
  return fit;
}

}  // namespace fewbit
