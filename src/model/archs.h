#pragma once
// Architectures: one file per family in archs/, one line per class name in archs.def.
#include <string_view>
#include <vector>

#include "src/model/config_view.h"
#include "src/model/model_spec.h"

namespace fewbit {

struct Architecture {
  std::string_view class_name;  // as in config.json "architectures"
  ModelSpec (*build)(const ConfigView&);
};

const std::vector<Architecture>& architectures();
// The spec of a config; Error{unsupported} with the list of known class names otherwise.
ModelSpec build_spec(const ConfigView&);

#define FEWBIT_ARCH(class_name, id) ModelSpec arch_##id(const ConfigView&);
#include "src/model/archs.def"
#undef FEWBIT_ARCH

}  // namespace fewbit
