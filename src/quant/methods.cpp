// The registry of methods, from methods.def.
#include "src/core/registry.h"
#include "src/quant/method.h"
#include "src/quant/transform.h"

namespace fewbit {

const std::vector<const Method*>& methods() {
  static const std::vector<const Method*> all = {
#define FEWBIT_METHOD(id) &method_##id,
#include "src/quant/methods.def"
#undef FEWBIT_METHOD
  };
  return all;
}

const Method& method(std::string_view name) {
  if (const Method* m = find_named(methods(), name)) return *m;
  std::vector<std::string_view> known = names_of(methods());
  for (const Transform* t : transforms()) known.push_back(t->name);
  fail(ErrorKind::usage, unknown_name("method", name, std::span<const std::string_view>(known)));
}

}  // namespace fewbit
