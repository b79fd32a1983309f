#pragma once
// What compressed-tensors says of inputs besides their type: transform_config, of those that are turned before they are
// rounded (QuantSpec::turn), and the share of a row that its levels reach (QuantSpec::act_clip).
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

// QuantSpec::act_clip of `input_activations`. The scheme has no word for it: it stands in observer_kwargs, a dictionary
// that the library keeps and does not look at for dynamic inputs. Error where inputs of another type have one.
uint8_t clip_of(const ConfigObject& activations, bool int4);

}  // namespace fewbit::ct
