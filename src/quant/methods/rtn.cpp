// Round to nearest. `reference` is the plain rule (2 max|w| / (2^bits - 1), or the range of an asymmetric
// group); every other effort searches each group's scale, weighted by the diagonal of the Gram matrix where
// statistics are at hand.
#include "src/quant/rounding.h"

namespace fewbit {
namespace {

MethodResult quantize(Exec& ex, const LinearJob& job) {
  require_job(ex, job, {});
  return round_to_nearest(ex, job);
}

}  // namespace

constinit const Method method_rtn = {.name = "rtn",
                                     .summary = "round to nearest, scales searched",
                                     .needs = Needs::nothing,
                                     .quantize = quantize};

}  // namespace fewbit
