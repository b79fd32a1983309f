#pragma once
// From a config to the op list of its model. Architectures: one file per family in archs/, with its record
// (src/model/family.h).
#include "src/model/config_view.h"
#include "src/model/family.h"
#include "src/model/model_spec.h"

namespace fewbit {

// The spec of a config. Error{unsupported} naming the class or model_type, the nearest family and all that are
// supported, where it is of none that is read here.
ModelSpec build_spec(const ConfigView&);
// The family of a config, refused as above.
const Family& family_of(const ConfigView&);

}  // namespace fewbit
