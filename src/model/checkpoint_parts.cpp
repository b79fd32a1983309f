#include "src/model/checkpoint_parts.h"

#include <set>

#include "src/core/strings.h"
#include "src/model/family.h"

namespace fewbit {

std::vector<std::string> unknown_matrices(const Checkpoint& c) {
  std::set<std::string> known = {"lm_head.weight"};
  for (const NamedDense& t : dense_tensors_of(c.spec)) known.insert(t.name);
  for (const NamedLinear& l : linears_of(c.spec)) known.insert(l.name + ".weight");
  std::vector<std::string> names;
  for (const auto& [name, info] : c.store.index().tensors)
    if (info.shape.rank() == 2 && ends_with(name, ".weight") && !known.count(name))
      names.push_back(name.substr(0, name.size() - 7));
  return names;
}

std::vector<std::string> always_dense(const Checkpoint& c) {
  std::vector<std::string> names = routers_of(c.spec);
  const Family* family = find_family(c.spec.arch);
  for (std::string& name : unknown_matrices(c)) {
    if (family && !starts_with(name, "model.") && !kept_outside(*family, name).empty())
      names.push_back("model." + name);
    names.push_back(std::move(name));
  }
  return names;
}

bool holds_codes(const Checkpoint& c, const std::string& tensor) {
  const size_t dot = tensor.rfind('.');
  if (dot == std::string::npos || !c.packed(tensor.substr(0, dot))) return false;
  for (const char* other : {".bias", ".k_scale", ".v_scale", ".q_scale", ".output_scale"})
    if (tensor.compare(dot, std::string::npos, other) == 0) return false;
  return true;
}

void release_linear(const Checkpoint& c, const std::string& linear) {
  c.store.release(linear + ".weight");
  const auto it = c.quantization.linears.find(linear);
  if (it == c.quantization.linears.end()) return;
  const LinearFormat& f = it->second;
  for (const TensorPlan& t : f.packing->tensors(f.spec, 256, 256, f.act_order))
    c.store.release(linear + '.' + t.suffix);
}

}  // namespace fewbit
