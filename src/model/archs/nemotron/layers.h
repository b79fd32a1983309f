#pragma once
// The kinds of layer of Nemotron-H.
#include "src/model/archs/decoder.h"

namespace fewbit {

// What stands between the norm of a layer and its sum, by the layer's letter: a state space (M), attention (*), an MLP
// (-) or experts (E), h -> h.
std::vector<BlockOp> nemotron_mixer(const ConfigView&, const DecoderSizes&, char letter);

}  // namespace fewbit
