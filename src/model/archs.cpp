// The table of architectures, expanded from archs.def.
#include "src/model/archs.h"

#include "src/core/strings.h"

namespace fewbit {

const std::vector<Architecture>& architectures() {
  static const std::vector<Architecture> all = {
#define FEWBIT_ARCH(name, id) {.class_name = (name), .build = &arch_##id},
#include "src/model/archs.def"
#undef FEWBIT_ARCH
  };
  return all;
}

ModelSpec build_spec(const ConfigView& config) {
  const std::string name = config.architecture();
  std::vector<std::string> known;
  for (const Architecture& a : architectures()) {
    if (a.class_name == name) return a.build(config);
    known.emplace_back(a.class_name);
  }
  fail(ErrorKind::unsupported,
       config.where() + ": architectures: found \"" + name + "\"; supported: " + join(known, ", "));
}

}  // namespace fewbit
