#pragma once
// Checkpoints that stack the experts of a layer in one tensor, read as those that have a tensor for every expert.
#include "src/model/model_spec.h"
#include "src/model/weight_store.h"

namespace fewbit {

// Where the store has the stacks that a Moe of the spec names, and not the experts' own tensors: the same bytes under
// the experts' names, as views into the files. Error{checkpoint} where a stack has another shape than the config says.
WeightStore with_single_experts(const ModelSpec&, WeightStore);

}  // namespace fewbit
