#pragma once
// What `quantize RECIPE` would make of a model, as src/run/plan reads it; nothing is computed.
#include <string_view>

#include "src/model/checkpoint.h"
#include "src/run/plan/serving_plan.h"

namespace fewbit {

// `c` gets the quantization that the result would have. Error{usage} for a recipe that is none or chooses its bits by
// measuring, Error{unsupported} with the reasons where it does not fit the model.
ServedModel served_as(Checkpoint& c, std::string_view recipe);

}  // namespace fewbit
