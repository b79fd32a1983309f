#pragma once
// transform_config of compressed-tensors: inputs of linears that are turned before they are rounded (QuantSpec::turn).
// Internal to formats/checkpoints.
#include <cstdint>
#include <map>
#include <string>

#include "formats/checkpoint_format.h"
#include "formats/config_object.h"

namespace fewbit::ct {

// As JSON; "" where nothing is turned. A matrix of the type "hadamard" is Sylvester's, of head_dim inputs over and
// over, and weights have its inverse in them already.
std::string transform_config(const QuantizationSummary&);

// QuantSpec::turn by linear, of a quantization config. Error{unsupported} for transforms of another kind or place.
std::map<std::string, int64_t> turned_inputs(const ConfigObject& config);

}  // namespace fewbit::ct
