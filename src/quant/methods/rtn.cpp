// Round to nearest. `reference` is the plain rule (2 max|w| / (2^bits - 1), or the range of an asymmetric
// group); every other effort searches each group's scale, weighted by the diagonal of the Gram matrix where
// statistics are at hand. Grids of 4-bit floats (NVFP4, MXFP4) are rounded to in the same two ways.
#include "kernels/quantize/matrix_edit.h"
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
    return loss_per_token(ex, job.weight, values_of(ex, q, DType::f32), *job.stats, *job.rows, LossSums::reported);
  };
  LinearJob plain = job;
  plain.effort = Effort::reference;
  result.loss = result.loss_target = loss(result.linear);
  result.loss_rtn = result.loss_target_rtn = loss(round_to_fp4(ex, plain, {}));
  return result;
}

MethodResult quantize(Exec& ex, const LinearJob& job) {
  if (job.spec.grid == Grid::f4_e2m1) return quantize_fp4(ex, job);
  require_job(ex, job, {});
  return round_to_nearest(ex, job);
}

}  // namespace

constinit const Method method_rtn = {
    .name = "rtn",
    .summary = "round to nearest, scales searched",
    .needs = Needs::nothing,
    .grids = {.f4 = true},
    .quantize = quantize,
    .rounds_alone = true,
};

}  // namespace fewbit
