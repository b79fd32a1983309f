// FP8: weights to the nearest E4M3 value, with a scale per output, per block of 128 x 128 or one of all. `reference` is
// max|w| / 448; every other effort searches the scale, weighted by the diagonal of the Gram matrix where statistics are
// at hand. `gptq fp8` is the method that feeds the errors forward on the same grid.
#include "src/quant/rounding.h"

namespace fewbit {
namespace {

MethodResult quantize(Exec& ex, const LinearJob& job) {
  require_job(ex, job, {.integer = false, .f8 = true});
  return round_to_nearest(ex, job);
}

}  // namespace

constinit const Method method_fp8 = {
    .name = "fp8",
    .summary = "E4M3 weights, scales searched; inputs FP8 per token",
    .needs = Needs::nothing,
    .grids = {.integer = false, .f8 = true},
    .quantize = quantize,
};

}  // namespace fewbit
