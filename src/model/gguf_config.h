#pragma once
// A model's config as GGUF metadata, and back.
#include <string>
#include <vector>

#include "formats/gguf/file.h"
#include "src/model/config_view.h"
#include "src/model/model_spec.h"

namespace fewbit {

// The keys of the architecture ("llama.block_count" …) and general ones; no tokenizer. Where layers have a
// sliding window that the file's architecture does not know, the context is cut to it, which makes both the
// same. Error{unsupported} for what the file's architecture cannot say.
gguf::Metadata gguf_metadata(const ConfigView&, const ModelSpec&);
// What the rotary frequencies are divided by, [head_dim / 2]: the tensor rope_freqs.weight of Llama 3.1.
// Empty where the metadata says it all.
std::vector<float> gguf_rope_factors(const ConfigView&, const ModelSpec&);

// A config.json as Hugging Face would write it, from metadata, the shapes of the tensors, and rope_freqs
// (empty where absent). Error{checkpoint|unsupported} naming the key.
std::string config_from_gguf(const gguf::File&, const std::vector<float>& rope_factors);

}  // namespace fewbit
