// Round to nearest. `reference` is the plain rule (2 max|w| / (2^bits - 1), or the range of an asymmetric
// group); every other effort searches each group's scale, weighted by the diagonal of the Gram matrix where
// statistics are at hand.
#include "kernels/matrix_edit.h"
#include "src/quant/rounding.h"

namespace fewbit {
namespace {

MethodResult quantize(Exec& ex, const LinearJob& job) {
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
                                     .rounds_alone = true};

}  // namespace fewbit
