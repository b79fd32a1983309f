#include "src/quant/rounding.h"

#include <cmath>

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
  q.scales = ex.alloc(DType::f32, {out, spec.groups(in)});
  if (!spec.symmetric) q.zeros = ex.alloc(DType::u8, {out, spec.groups(in)});
  return q;
}

DeviceCodes round_plain(Exec& ex, ConstTensorView w, ConstTensorView h, const QuantSpec& spec,
                        ScaleRule rule) {
  DeviceCodes q = make_codes(ex, spec, w.rows(), w.cols());
  const int64_t group = spec.group_size(w.cols());
  choose_scales(ex, w, h, group, search_for(spec, rule), q.scales, q.zeros);
  round_to_grid(ex, {.w = w, .scales = q.scales, .zeros = q.zeros, .bits = spec.bits, .group = group},
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
              .group = spec.group_size(q.codes.cols())},
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

void require_finite(Exec& ex, const std::string& linear, ConstTensorView weight) {
  if (const int64_t bad = count_nonfinite(ex, weight); bad > 0)
    fail(ErrorKind::checkpoint, "linear " + linear + ": " + std::to_string(bad) + " of " +
                                    std::to_string(weight.numel()) +
                                    " weights are infinite or not a number; the checkpoint is damaged");
}

void require_integer_job(Exec& ex, const LinearJob& job) {
  if (job.spec.grid != Grid::integer || job.spec.out_group != 1 || job.spec.bits < 2 || job.spec.bits > 8)
    fail(ErrorKind::unsupported, "linear " + job.name +
                                     ": this method rounds to integer grids of 2 to 8 bits with " +
                                     "scales per output row, not to " + job.spec.str());
  FEWBIT_ASSERT(job.spec.group == -1 || job.spec.group > 0);
  require_finite(ex, job.name, job.weight);
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
