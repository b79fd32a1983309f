#pragma once
// Adapters of PEFT (LoRA), merged into the weights of a model as they are read, linear by linear.
#include <filesystem>
#include <string>

#include "src/model/checkpoint.h"

namespace fewbit {

// The checkpoint with W + s B A in the place of every weight W [out, in] that the adapter in `dir`
// (adapter_config.json, adapter_model.safetensors) has A [r, in] and B [out, r] for, in W's own type; s = alpha / r,
// with rslora alpha / sqrt(r), r and alpha by module where the config has patterns. The sum is made in f32 when the
// weight is asked for (Hu et al. 2021, LoRA, section 4.1; Kalajdzievski 2023). `digest` gets that of both files.
// Error{checkpoint} with every tensor that has no place; Error{unsupported} for what is no plain LoRA (DoRA,
// embeddings, trained biases, whole modules), by its name in the config, and for a linear that is packed in the model.
Checkpoint with_adapter(Checkpoint, const std::filesystem::path& dir, std::string& digest);

}  // namespace fewbit
