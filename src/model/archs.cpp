// The table of architectures, expanded from archs.def.
#include "src/model/archs.h"

#include <algorithm>

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

namespace {

// Letters and digits that two class names have in common from their beginning.
size_t likeness(std::string_view a, std::string_view b) {
  return static_cast<size_t>(std::mismatch(a.begin(), a.end(), b.begin(), b.end()).first - a.begin());
}

}  // namespace

ModelSpec build_spec(const ConfigView& config) {
  const std::string name = config.architecture();
  std::vector<std::string> known;
  for (const Architecture& a : architectures()) {
    if (a.class_name == name) return a.build(config);
    known.emplace_back(a.class_name);
  }
  const auto near = [&](const std::string& a, const std::string& b) { return likeness(a, name) < likeness(b, name); };
  const std::string nearest = *std::max_element(known.begin(), known.end(), near);
  fail(ErrorKind::unsupported, config.where() + ": architectures: found \"" + name +
                                   "\"; the nearest family read here: " + nearest +
                                   "; supported: " + join(known, ", "));
}

}  // namespace fewbit
