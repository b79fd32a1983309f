#include "src/quant/rounding.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>

#include "kernels/exec/upload.h"
#include "kernels/products/dequantize.h"
#include "kernels/quantize/choose_f8_scales.h"
#include "kernels/quantize/factor.h"
#include "kernels/quantize/matrix_edit.h"
#include "kernels/quantize/round_fp4.h"
#include "kernels/quantize/round_to_grid.h"
#include "kernels/statistics/column_stats.h"
#include "kernels/statistics/gram_loss.h"
#include "src/core/half.h"

namespace fewbit {
ScaleSearch search_for(const QuantSpec& spec, ScaleRule rule) {
  ScaleSearch s = default_search(spec.bits, spec.symmetric, rule);
  s.scale_dtype = spec.scale_dtype;
  return s;
}

DeviceCodes make_codes(Exec& ex, const QuantSpec& spec, int64_t out, int64_t in) {
  DeviceCodes q;
  q.codes = ex.alloc(DType::u8, {out, in});
  q.scales = ex.alloc(DType::f32, {(out + spec.out_group - 1) / spec.out_group, spec.groups(in)});
  if (spec.grid == Grid::integer && !spec.symmetric) q.zeros = ex.alloc(DType::u8, {out, spec.groups(in)});
  return q;
}

void choose_grid(Exec& ex, ConstTensorView w, ConstTensorView h, const QuantSpec& spec, ScaleRule rule,
                 DeviceCodes& q) {
  const int64_t group = spec.group_size(w.cols());
  if (spec.grid == Grid::integer) return choose_scales(ex, w, h, group, search_for(spec, rule), q.scales, q.zeros);
  choose_f8_scales(ex,
                   {.w = w,
                    .h = h,
                    .group = group,
                    .out_group = spec.out_group,
                    .scale_dtype = spec.scale_dtype,
                    .search = rule != ScaleRule::absmax},
                   q.scales);
}

DeviceCodes round_plain(Exec& ex, ConstTensorView w, ConstTensorView h, const QuantSpec& spec, ScaleRule rule) {
  DeviceCodes q = make_codes(ex, spec, w.rows(), w.cols());
  choose_grid(ex, w, h, spec, rule, q);
  round_to_grid(ex, w,
                {.codes = q.codes,
                 .scales = q.scales,
                 .zeros = q.zeros,
                 .grid = spec.grid,
                 .bits = spec.bits,
                 .group = spec.group_size(w.cols()),
                 .out_group = spec.out_group});
  return q;
}

DeviceCodes round_alone(Exec& ex, const LinearJob& job, ConstTensorView w, ConstTensorView h, ScaleRule rule,
                        ConstTensorView c) {
  if (!job.two_of_four) return round_plain(ex, w, h, job.spec, rule);
  Tensor roots;
  if (c.data) {
    const Tensor host = ex.to_host(c);
    std::vector<float> s(host.as<float>(), host.as<float>() + host.numel());
    for (float& v : s) v = std::sqrt(v);
    roots = upload(ex, s);
  }
  const Tensor left = ex.alloc(DType::f32, w.shape);
  ex.copy(w, left);
  prune_quads(ex, roots, left);
  return round_plain(ex, left, h, job.spec, rule);
}

Tensor values_of(Exec& ex, const DeviceCodes& q, const QuantSpec& spec, DType dtype) {
  const Tensor levels = levels_of(ex, spec.grid);
  Tensor w = ex.alloc(dtype, q.codes.shape());
  dequantize(ex,
             {.codes = q.codes,
              .scales = q.scales,
              .zeros = q.zeros,
              .group_of = q.group_of,
              .levels = levels,
              .grid = spec.grid,
              .bits = spec.bits,
              .group = spec.group_size(q.codes.cols()),
              .out_group = spec.out_group},
             w);
  return w;
}

float absmax_of(Exec& ex, ConstTensorView w) {
  const Tensor columns = ex.alloc_zeros(DType::f32, {w.cols()}), sums = ex.alloc_zeros(DType::f64, {w.cols()});
  column_stats(ex, w, {}, columns, sums);
  const Tensor host = ex.to_host(columns);
  return *std::max_element(host.as<float>(), host.as<float>() + host.numel());
}

QuantizedLinear round_to_fp4(Exec& ex, const LinearJob& job, ConstTensorView h) {
  const QuantSpec& spec = job.spec;
  const int64_t out = job.weight.rows(), in = job.weight.cols();
  if (in % spec.group != 0)
    fail(ErrorKind::unsupported,
         fmt::format("linear {}: {} wants inputs in groups of {}, here {}", job.name, spec.str(), spec.group, in));
  require_finite(ex, job.name, job.weight, *job.rows);
  QuantizedLinear q;
  q.spec = spec;
  if (spec.two_level()) q.global_scale = nvfp4_global_scale(std::max(job.shared_absmax, absmax_of(ex, job.weight)));
  const Tensor codes = ex.alloc(DType::u8, {out, in}), scales = ex.alloc(DType::f32, {out, in / spec.group});
  round_fp4(ex,
            {.w = job.weight,
             .h = h,
             .group = spec.group,
             .scale_dtype = spec.scale_dtype,
             .global = static_cast<float>(q.global_scale.value_or(1.0)),
             .search = job.effort != Effort::reference},
            codes, scales);
  q.codes = ex.to_host(codes);
  q.scales = ex.to_host(scales);
  return q;
}

double sum_of(Exec& ex, ConstTensorView values) {
  const Tensor host = ex.to_host(values);
  return std::accumulate(host.as<double>(), host.as<double>() + host.numel(), 0.0);
}

double loss_per_token(Exec& ex, ConstTensorView a, ConstTensorView b, const InputStats& stats, const RowShare& rows,
                      LossSums sums) {
  Tensor loss = ex.alloc(DType::f64, {a.rows()});
  gram_loss(ex, a, b, stats.gram, loss, sums);
  const double sum = rows.sum_of(ex, loss) / static_cast<double>(stats.tokens);
  return std::isfinite(sum) ? sum : 0;
}

namespace {

// target [out, in] = the weight, shifted; false where the system cannot be factored.
bool make_target(Exec& ex, const LinearJob& job, float lambda, const Tensor& target, Tensor* r) {
  const InputStats& stats = *job.stats;
  const ConstTensorView more = stats.residual ? job.rows->mine(stats.residual) : ConstTensorView{};
  if (more.data || !shares_shift(ex.device().kind, job.weight.cols()))
    return shift_targets(ex, job.weight, stats.cross, stats.gram, lambda, more, kShiftShare, target, job.rows->panels(),
                         r)
        .ok();
  ShiftCache& cache = stats.shift;
  if (cache.lambda != lambda) {
    cache = {.lambda = lambda, .m = ex.alloc(DType::f32, stats.gram.shape())};
    if (!shift_matrix(ex, stats.cross, stats.gram, lambda, kShiftShare, cache.m, r).ok()) cache.m.reset();
  }
  if (cache.m) apply_shift(ex, job.weight, cache.m, target);
  return !cache.m.empty();
}

}  // namespace

bool shift_target(Exec& ex, const LinearJob& job, float lambda, const Tensor& target, Tensor* r) {
  return job.rows->everywhere(make_target(ex, job, lambda, target, r) && count_nonfinite(ex, target) == 0);
}

namespace {

// The weight that reproduces the unquantized output from the quantized input with more damping where the Gram
// matrix asks for it; empty where none helps. d: the diagonal of that matrix, [in] f32.
Tensor shifted_target(Exec& ex, const LinearJob& job, ConstTensorView d) {
  const Tensor host = ex.to_host(d);
  const double sum = std::accumulate(host.as<float>(), host.as<float>() + host.numel(), 0.0);
  const float lambda = job.damp * static_cast<float>(sum / static_cast<double>(host.numel()));
  Tensor target = ex.alloc(DType::f32, job.weight.shape);
  for (const float more : {1.f, 10.f, 100.f})
    if (shift_target(ex, job, more * lambda, target)) return target;
  return {};
}

// So near that roundings of LossSums::reported might say which is less.
bool nearly_equal(double a, double b) { return std::abs(a - b) <= 1e-2 * std::max(std::abs(a), std::abs(b)); }

}  // namespace

MethodResult round_to_nearest(Exec& ex, const LinearJob& job) {
  const bool searched = job.effort != Effort::reference, measured = has_gram(job);
  MethodResult result;
  Tensor shifted, h;
  ConstTensorView target = job.weight;
  if (searched && measured) {
    h = ex.alloc(DType::f32, {job.weight.cols()});
    diagonal(ex, job.stats->gram, h);
    const bool shifts = job.shifts_targets && !job.stats->cross.empty();
    if (shifts) shifted = shifted_target(ex, job, h);
    if (shifted)
      target = shifted;
    else if (shifts)
      result.rung = "diagonal";
  }
  DeviceCodes q = round_alone(ex, job, target, h, searched ? ScaleRule::diag_grid : ScaleRule::absmax);
  if (measured) {
    const auto loss = [&](ConstTensorView aim, const DeviceCodes& codes, LossSums sums = LossSums::reported) {
      return loss_per_token(ex, aim, values_of(ex, codes, job.spec), *job.stats, *job.rows, sums);
    };
    result.loss_target = result.loss_target_rtn = loss(target, q);
    if (searched) {
      DeviceCodes plain = round_alone(ex, job, job.weight, {}, ScaleRule::absmax);
      result.loss_target_rtn = loss(target, plain);
      result.loss_rtn = shifted ? loss(job.weight, plain) : result.loss_target_rtn;
      if (nearly_equal(result.loss_target_rtn, result.loss_target)) {
        result.loss_target = loss(target, q, LossSums::f64);
        result.loss_target_rtn = loss(target, plain, LossSums::f64);
      }
      if (result.loss_target_rtn < result.loss_target) {  // the search knows the diagonal of the Gram matrix alone
        q = std::move(plain);
        result.loss_target = result.loss_target_rtn;
      }
    }
    result.loss = shifted ? loss(job.weight, q) : result.loss_target;
    if (!searched) result.loss_rtn = result.loss;
  }
  deliver(ex, std::move(q), job, result);
  return result;
}

void require_finite(Exec& ex, const std::string& linear, ConstTensorView weight, const RowShare& rows) {
  if (const int64_t bad = rows.sum(count_nonfinite(ex, weight)); bad > 0)
    fail(ErrorKind::checkpoint, "linear " + linear + ": " + std::to_string(bad) + " of " +
                                    std::to_string(rows.sum(weight.numel())) +
                                    " weights are infinite or not a number; the checkpoint is damaged");
}

void require_job(Exec& ex, const LinearJob& job, Grids grids) {
  const QuantSpec& s = job.spec;
  const bool shape = s.grid == Grid::f8_e4m3 ? s.bits == 8 : s.out_group == 1 && s.bits >= 2 && s.bits <= 8;
  if (!grids.has(s.grid) || !shape)
    fail(ErrorKind::unsupported, "linear " + job.name + ": this method rounds to " +
                                     (grids.integer ? "integer grids of 2 to 8 bits with scales per output row" : "") +
                                     (grids.integer && grids.f8 ? " and to " : "") + (grids.f8 ? "FP8" : "") +
                                     ", not to " + s.str());
  FEWBIT_ASSERT(job.spec.group == -1 || job.spec.group > 0);
  require_finite(ex, job.name, job.weight, *job.rows);
}

void deliver(Exec& ex, DeviceCodes&& q, const LinearJob& job, MethodResult& result) {
  QuantizedLinear& host = result.linear;
  host.spec = job.spec;
  if (!job.codes_stay) host.codes = ex.to_host(q.codes);
  host.scales = ex.to_host(q.scales);
  if (q.zeros) host.zeros = ex.to_host(q.zeros);
  if (q.group_of) host.group_of = ex.to_host(q.group_of);
  result.there = std::move(q);
}

bool has_gram(const LinearJob& job) { return job.stats && job.stats->tokens > 0 && !job.stats->gram.empty(); }

}  // namespace fewbit
