// The registry of transforms, from transforms.def, and what they may touch.
#include "src/core/registry.h"
#include "src/quant/transform.h"

namespace fewbit {

const std::vector<const Transform*>& transforms() {
  static const std::vector<const Transform*> all = {
#define FEWBIT_TRANSFORM(id) &transform_##id,
#include "src/quant/transforms.def"
#undef FEWBIT_TRANSFORM
  };
  return all;
}

const Transform* find_transform(std::string_view name) { return find_named(transforms(), name); }

std::vector<Absorber> usable_absorbers(const std::vector<BlockOp>& ops,
                                       const std::map<std::string, LinearTarget>& targets) {
  std::vector<Absorber> usable;
  for (Absorber& a : absorbers_of(ops)) {
    bool all = a.kind == Absorber::Kind::norm || targets.count(a.name) > 0;
    for (const LinearDef& l : a.linears) all = all && targets.count(l.name) > 0;
    if (all) usable.push_back(std::move(a));
  }
  return usable;
}

}  // namespace fewbit
