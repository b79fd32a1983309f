#include "src/quant/rounding.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "kernels/column_stats.h"
#include "kernels/dequantize.h"
#include "kernels/gram_loss.h"
#include "kernels/matrix_edit.h"
#include "kernels/round_fp4.h"
#include "kernels/round_to_grid.h"
#include "src/core/half.h"

namespace fewbit {
namespace {

Tensor levels_of(Grid grid) {
  Tensor levels = Tensor::host(DType::f32, {256});
  for (int c = 0; c < 256; ++c) {
    const auto code = static_cast<uint8_t>(c);
    levels.as<float>()[c] = grid == Grid::f8_e4m3 ? f8_e4m3_to_f32(code) : f4_e2m1_to_f32(code & 15);
  }
  return levels;
}

// The least power of two with which the scale of a group that reaches absmax is still an E4M3 number: a power
// of two, so that formats that store it and formats that store one over it hold the same.
double global_scale(float absmax) {
  if (!(absmax > 0)) return 1;
  int exponent = 0;
  const double mantissa = std::frexp(absmax / (448.0 * 6.0), &exponent);
  return std::ldexp(1.0, mantissa == 0.5 ? exponent - 1 : exponent);
}

}  // namespace

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

Tensor values_of(Exec& ex, const QuantizedLinear& q, DType dtype) {
  Tensor effective = clone_host(q.scales);
  for (int64_t i = 0; i < effective.numel(); ++i)
    effective.as<float>()[i] = static_cast<float>(effective.as<float>()[i] * q.global_scale.value_or(1.0));
  const Tensor codes = ex.to_device(q.codes), scales = ex.to_device(effective);
  const Tensor zeros = q.zeros ? ex.to_device(*q.zeros) : Tensor();
  const Tensor group_of = q.group_of ? ex.to_device(*q.group_of) : Tensor();
  const Tensor levels = q.spec.grid == Grid::integer ? Tensor() : ex.to_device(levels_of(q.spec.grid));
  Tensor w = ex.alloc(dtype, {q.out(), q.in()});
  dequantize(ex,
             {.codes = codes,
              .scales = scales,
              .zeros = zeros,
              .group_of = group_of,
              .levels = levels,
              .bits = q.spec.bits,
              .group = q.spec.group_size(q.in()),
              .out_group = q.spec.out_group},
             w);
  return w;
}

float absmax_of(Exec& ex, ConstTensorView w) {
  const Tensor columns = ex.alloc_zeros(DType::f32, {w.cols()}),
               sums = ex.alloc_zeros(DType::f64, {w.cols()});
  column_stats(ex, w, {}, columns, sums);
  const Tensor host = ex.to_host(columns);
  return *std::max_element(host.as<float>(), host.as<float>() + host.numel());
}

QuantizedLinear round_to_fp4(Exec& ex, const LinearJob& job, ConstTensorView h) {
  const QuantSpec& spec = job.spec;
  const int64_t out = job.weight.rows(), in = job.weight.cols();
  if (in % spec.group != 0)
    fail(ErrorKind::unsupported, fmt::format("linear {}: {} wants inputs in groups of {}, here {}", job.name,
                                             spec.str(), spec.group, in));
  require_finite(ex, job.name, job.weight);
  QuantizedLinear q;
  q.spec = spec;
  if (spec.two_level()) q.global_scale = global_scale(std::max(job.shared_absmax, absmax_of(ex, job.weight)));
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
