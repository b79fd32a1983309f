#include "src/quant/plan/method_bytes.h"

#include <algorithm>

#include "src/quant/methods/gptq_bytes.h"

namespace fewbit {

namespace {

int64_t bytes_of_method(Device::Kind kind, const PlannedLinear& p, bool sibling) {
  const int64_t in = p.linear.in, out = p.linear.out, weights = out * in;
  if (p.lossless) return weights * 6;  // codes in two places, and the values that take their place
  if (!has(p.recipe.needs(), Needs::gram)) return weights * 14;
  const bool shifted = has(p.recipe.needs(), Needs::cross);
  const bool gptq = p.recipe.method == &method_gptq;
  const int64_t strips = gram_loss_bytes(kind, out, in), factor = gptq ? 4 * in * in : 0;
  const int64_t losses = factor + 14 * weights + strips;
  if (!gptq) return std::max(losses, (shifted ? shift_bytes(kind, out, in) : 0) + weights * 13 + strips);
  return std::max(losses, 4 * weights + gptq_bytes(kind, {.out = out,
                                                          .in = in,
                                                          .group = p.recipe.spec.group_size(in),
                                                          .effort = p.recipe.effort,
                                                          .act_order = p.recipe.act_order,
                                                          .shifted = shifted,
                                                          .sibling = sibling}));
}

}  // namespace

int64_t method_bytes(Device::Kind kind, const PlannedLinear& p, bool sibling) {
  const int64_t in = p.linear.in, sums = has(p.recipe.needs(), Needs::gram) ? 2 * in * in : 0;
  const int64_t turned = p.recipe.spec.turn ? 4 * (p.linear.out * in + sums) : 0;  // beside those of the input itself
  return bytes_of_method(kind, p, sibling) + turned;
}

}  // namespace fewbit
