#pragma once
// What an op of a block reads and writes: derived here once, for the liveness of activations and for
// transforms that ask who produced an input.
#include <vector>

#include "src/model/model_spec.h"

namespace fewbit {

std::vector<Slot> slots_read(const BlockOp&);
std::vector<Slot> slots_written(const BlockOp&);  // an in-place op lists its slot in both

// Whether a linear reads what a Norm made; otherwise attention, an activation function or a mixer did.
bool reads_a_norm(const ModelSpec&, const NamedLinear&);

}  // namespace fewbit
