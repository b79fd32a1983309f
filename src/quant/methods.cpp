// The registry of methods, from methods.def.
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
  std::string known;
  for (const Method* m : methods()) {
    if (m->name == name) return *m;
    known += " ";
    known += m->name;
  }
  for (const Transform* t : transforms()) (known += " ") += t->name;
  fail(ErrorKind::usage, "no method \"" + std::string(name) + "\"; known:" + known);
}

}  // namespace fewbit
