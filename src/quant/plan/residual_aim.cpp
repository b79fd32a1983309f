#include "src/quant/plan/residual_aim.h"

#include "kernels/statistics/gram.h"
#include "src/calib/residual.h"

namespace fewbit {

std::optional<float> makes_good(const QuantPlan& plan, const ModelSpec& spec, int64_t layer, size_t at) {
  if (!plan.calibrates()) return std::nullopt;
  const std::vector<BlockOp>& ops = spec.block(layer);
  const std::optional<float> factor = residual_factor(ops, at);
  if (!factor) return std::nullopt;
  const LinearDef& l = std::get<Linears>(ops[at]).items.front();
  const PlannedLinear* p = plan.find(spec.prefix(layer) + l.name);
  const bool wanted = p && !p->keep && !p->lossless && has(p->recipe.needs(), Needs::residual);
  return wanted && l.out_features == spec.width() ? factor : std::nullopt;
}

int64_t error_features(const QuantPlan& plan, const ModelSpec& spec, int64_t layer, size_t at) {
  return makes_good(plan, spec, layer, at) ? spec.width() : 0;
}

ErrorBytes error_bytes(int64_t features, int64_t in, Device::Kind kind, int64_t elem, int64_t chunk, int ranks) {
  const int64_t piece = gram_chunk(kind);
  return {.sums = 4 * features * in,
          .rows = features * elem * (chunk * (ranks == 1 ? 1 : 2) + (chunk % piece == 0 ? 0 : piece))};
}

}  // namespace fewbit
