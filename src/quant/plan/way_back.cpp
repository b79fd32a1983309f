#include "src/quant/plan/way_back.h"

#include <fmt/format.h>

#include <algorithm>

#include "src/core/strings.h"
#include "src/quant/loop/curvature/output_gradients.h"
#include "src/quant/loop/learn/block_tape.h"
#include "src/quant/plan/plan_ends.h"

namespace fewbit {

bool learns_rounding(const QuantPlan& plan, const ModelSpec& spec, int64_t layer) {
  return has_gradient(spec.block(layer)) &&
         std::any_of(plan.linears.begin(), plan.linears.end(), [&](const PlannedLinear& p) {
           return p.linear.layer == layer && !p.keep && p.recipe.learns_rounding();
         });
}

bool weighs_outputs(const QuantPlan& plan, std::optional<int64_t> layer) {
  return plan.calibrates() && std::any_of(plan.linears.begin(), plan.linears.end(), [&](const PlannedLinear& p) {
           return (!layer || p.linear.layer == *layer) && !p.keep && !p.lossless && p.recipe.weighs_outputs;
         });
}

int64_t walk_tokens(const QuantPlan& plan) {
  const bool best = std::any_of(plan.linears.begin(), plan.linears.end(), [](const PlannedLinear& p) {
    return p.recipe.weighs_outputs && p.recipe.effort == Effort::best;
  });
  return best ? kCurvatureTokensOfBest : kCurvatureTokens;
}

void ask_for_the_way_back(const ModelSpec& spec, PlannedLinear& p, const std::function<void(std::string)>& refuse) {
  if (is_end(p.linear)) {
    p.recipe.weighs_outputs = false;
    return;
  }
  if (p.recipe.learns_rounding())
    if (const std::string_view what = without_gradient(spec.block(p.linear.layer)); !what.empty())
      add_note(p.note, fmt::format("no learned rounding in blocks with {}: the codes stay those of {}", what,
                                   p.recipe.method->name));
  if (!p.recipe.weighs_outputs) return;
  const std::string what = without_curvature(spec);
  if (what.empty()) return;
  if (!p.recipe.weighs_where_it_can)
    return refuse(fmt::format("curvature=on: there is no way back through {}; leave it out", what));
  p.recipe.weighs_outputs = false;
  add_note(p.note, fmt::format("outputs by themselves: there is no way back through {}", what));
}

void bound_learning(const ModelSpec& spec, const PlanOptions& o, QuantPlan& plan) {
  plan.minutes = o.minutes;
  if (o.minutes == 0 || !plan.refusals.empty()) return;
  for (int64_t layer = 0; layer < spec.layers; ++layer)
    if (learns_rounding(plan, spec, layer)) return;
  fail(ErrorKind::usage, fmt::format("--minutes {:g}: no linear of this plan learns its rounding, and nothing else can "
                                     "be cut short; it is for effort=best at 3 bits and below",
                                     o.minutes));
}

}  // namespace fewbit
