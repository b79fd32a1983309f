#pragma once
// What an op of a block reads and writes: derived here once, for the liveness of activations and for
// transforms that ask who produced an input.
#include <vector>

#include "src/model/model_spec.h"

namespace fewbit {

std::vector<Slot> slots_read(const BlockOp&);
std::vector<Slot> slots_written(const BlockOp&);  // an in-place op lists its slot in both

// Whether a linear reads what an activation function made: a GatedAct, or the experts of a Moe inside.
bool follows_activation(const ModelSpec&, const NamedLinear&);

}  // namespace fewbit
