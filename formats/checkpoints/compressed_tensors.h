#pragma once
// Reading the compressed-tensors quantization_config. Internal to formats/.
#include "formats/checkpoint_format.h"
#include "formats/config_object.h"

namespace fewbit::compressed_tensors {

// How every linear is packed, from config_groups, ignore and the tensors that exist.
// Error{unsupported|checkpoint} names the key.
QuantizationSummary read(const ConfigObject& config, const std::vector<std::string>& linears,
                         const TensorSource& tensor);

}  // namespace fewbit::compressed_tensors
