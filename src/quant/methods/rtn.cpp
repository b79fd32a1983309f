// Round to nearest. `reference` is the plain rule (2 max|w| / (2^bits - 1), or the range of an asymmetric
// group); every other effort searches each group's scale, weighted by the diagonal of the Gram matrix where
// statistics are at hand. Grids of 4-bit floats (NVFP4, MXFP4) are rounded to in the same two ways.
#include "kernels/matrix_edit.h"
#include "src/quant/rounding.h"

namespace fewbit {
namespace {

// 4-bit floats. The losses of rtn's reference are those of the published rule.
MethodResult quantize_fp4(Exec& ex, const LinearJob& job) {
  Tensor h;
  if (has_gram(job)) {
    h = ex.alloc(DType::f32, {job.weight.cols()});
    diagonal(ex, job.stats->gram, h);
  }
  MethodResult result;
  result.linear = round_to_fp4(ex, job, h);
  if (!has_gram(job)) return result;
  const auto loss = [&](const QuantizedLinear& q) {
    return loss_per_token(ex, job.weight, values_of(ex, q, DType::f32), *job.stats);
  };
  LinearJob plain = job;
  plain.effort = Effort::reference;
  result.loss = result.loss_target = loss(result.linear);
  result.loss_rtn = result.loss_target_rtn = loss(round_to_fp4(ex, plain, {}));
  return result;
}

MethodResult quantize(Exec& ex, const LinearJob& job) {
  if (job.spec.grid == Grid::f4_e2m1) return quantize_fp4(ex, job);
  require_integer_job(ex, job);
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

}  // namespace

constinit const Method method_rtn = {.name = "rtn",
                                     .summary = "round to nearest, scales searched",
                                     .needs = Needs::nothing,
                                     .quantize = quantize,
                                     .rounds_fp4 = true,
                                     .rounds_alone = true};

}  // namespace fewbit
