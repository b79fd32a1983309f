#include "src/quant/plan/waves.h"

#include "src/quant/plan/plan.h"
#include "src/run/moe.h"

namespace fewbit {
namespace {

constexpr int kExpertsAtOnce = 32;

}  // namespace

std::vector<Waves> waves_to_try(const ModelSpec& spec, const QuantPlan& plan) {
  const bool weights = plan.calibrates() && plan.transforms.empty() && has_moe(spec);
  std::vector<Waves> all;
  for (int at_once = kExpertsAtOnce; at_once > 0; at_once /= 2) {
    all.push_back({.at_once = at_once});
    if (weights) all.push_back({.at_once = at_once, .weights = true});
  }
  return all;
}

}  // namespace fewbit
