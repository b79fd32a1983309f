#include "src/quant/search/feature_search.h"

namespace fewbit {

Features inverse_of(const Features& s) {
  Features inverse(s);
  for (float& x : inverse) x = 1 / x;
  return inverse;
}

void for_consumers(const TransformJob& job, const BlockF32& block, const Absorber& a,
                   const std::function<void(const LinearTarget&, ConstTensorView)>& f) {
  for (const LinearDef& l : a.linears) f(job.targets.at(l.name), block.weights.at(l.name + ".weight"));
}

}  // namespace fewbit
