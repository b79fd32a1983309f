#include "src/quant/plan/waves.h"

#include "src/quant/plan/memory_plan.h"
#include "src/quant/plan/plan.h"
#include "src/run/moe.h"

namespace fewbit {
namespace {

constexpr int kExpertsAtOnce = 32;

}  // namespace

std::vector<Waves> waves_to_try(const ModelSpec& spec, const QuantPlan& plan) {
  if (!has_moe(spec)) return {{.at_once = kExpertsAtOnce}};
  const bool weights = plan.calibrates() && plan.transforms.empty();
  std::vector<Waves> all;
  for (int at_once = kExpertsAtOnce; at_once > 0; at_once /= 2) {
    all.push_back({.at_once = at_once});
    if (weights) all.push_back({.at_once = at_once, .weights = true});
  }
  return all;
}

Waves waves_of(const MemoryPlan& m) {
  return {.at_once = m.experts_at_once, .weights = m.experts_in_waves, .lanes = m.lanes};
}

int64_t weights_of(const std::vector<BlockOp>& ops, size_t begin, size_t end, const Waves& waves) {
  int64_t n = 0;
  for (size_t i = begin; i < end; ++i)
    if (!(waves.weights && std::holds_alternative<Moe>(ops[i])))
      for (const LinearDef& l : linears_of(ops[i])) n += l.out_features * l.in_features;
  return n;
}

}  // namespace fewbit
