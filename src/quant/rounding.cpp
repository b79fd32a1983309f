#include "src/quant/rounding.h"

#include <cmath>

#include "kernels/choose_f8_scales.h"
#include "kernels/dequantize.h"
#include "kernels/gram_loss.h"
#include "kernels/matrix_edit.h"
#include "kernels/round_to_grid.h"

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

DeviceCodes round_plain(Exec& ex, ConstTensorView w, ConstTensorView h, const QuantSpec& spec,
                        ScaleRule rule) {
  DeviceCodes q = make_codes(ex, spec, w.rows(), w.cols());
  choose_grid(ex, w, h, spec, rule, q);
  round_to_grid(ex,
                {.w = w,
                 .scales = q.scales,
                 .zeros = q.zeros,
                 .bits = spec.bits,
                 .group = spec.group_size(w.cols()),
                 .grid = spec.grid,
                 .out_group = spec.out_group},
                q.codes);
  return q;
}

Tensor values_of(Exec& ex, const DeviceCodes& q, const QuantSpec& spec) {
  Tensor w = ex.alloc(DType::f32, q.codes.shape());
  dequantize(ex,
             {.codes = q.codes,
              .scales = q.scales,
              .zeros = q.zeros,
              .group_of = q.group_of,
              .bits = spec.bits,
              .group = spec.group_size(q.codes.cols()),
              .grid = spec.grid,
              .out_group = spec.out_group},
             w);
  return w;
}

double loss_per_token(Exec& ex, ConstTensorView a, ConstTensorView b, const InputStats& stats) {
  Tensor loss = ex.alloc(DType::f64, {a.rows()});
  gram_loss(ex, a, b, stats.gram, loss);
  const Tensor host = ex.to_host(loss);
  double sum = 0;
  for (int64_t o = 0; o < host.numel(); ++o) sum += host.as<double>()[o];
  sum /= static_cast<double>(stats.tokens);
  return std::isfinite(sum) ? sum : 0;
}

MethodResult round_to_nearest(Exec& ex, const LinearJob& job) {
  const bool searched = job.effort != Effort::reference, measured = has_gram(job);
  Tensor h;
  if (searched && measured) {
    h = ex.alloc(DType::f32, {job.weight.cols()});
    diagonal(ex, job.stats->gram, h);
  }
  DeviceCodes q =
      round_plain(ex, job.weight, h, job.spec, searched ? ScaleRule::diag_grid : ScaleRule::absmax);
  MethodResult result;
  if (measured) {
    result.loss = loss_per_token(ex, job.weight, values_of(ex, q, job.spec), *job.stats);
    result.loss_rtn = result.loss;
    if (searched) {
      const DeviceCodes plain = round_plain(ex, job.weight, {}, job.spec, ScaleRule::absmax);
      result.loss_rtn = loss_per_token(ex, job.weight, values_of(ex, plain, job.spec), *job.stats);
    }
    result.loss_target = result.loss;
    result.loss_target_rtn = result.loss_rtn;
  }
  result.linear = to_host(ex, std::move(q), job.spec);
  return result;
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
  if (const int64_t bad = count_nonfinite(ex, job.weight); bad > 0)
    fail(ErrorKind::checkpoint, "linear " + job.name + ": " + std::to_string(bad) + " of " +
                                    std::to_string(job.weight.numel()) +
                                    " weights are infinite or not a number; the checkpoint is damaged");
}

QuantizedLinear to_host(Exec& ex, DeviceCodes&& q, const QuantSpec& spec) {
  QuantizedLinear host;
  host.spec = spec;
  host.codes = ex.to_host(q.codes);
  host.scales = ex.to_host(q.scales);
  if (q.zeros) host.zeros = ex.to_host(q.zeros);
  if (q.group_of) host.group_of = ex.to_host(q.group_of);
  return host;
}

bool has_gram(const LinearJob& job) { return job.stats && job.stats->tokens > 0 && !job.stats->gram.empty(); }

}  // namespace fewbit
