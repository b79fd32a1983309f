#pragma once
// A model's config as GGUF metadata, and back.
#include <map>
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
// What the rotary frequencies are divided by, [rot / 2], by the tensor's name: rope_freqs of Llama 3.1, LongRoPE's two.
// Empty where the metadata says it all.
using GgufRopeFactors = std::map<std::string, std::vector<float>>;
inline constexpr const char* kRopeFreqs = "rope_freqs.weight";
inline constexpr const char* kRopeLong = "rope_factors_long.weight";
inline constexpr const char* kRopeShort = "rope_factors_short.weight";
// The divisor of a frequency that is 0, as files have it.
inline constexpr float kStill = 1e30f;
GgufRopeFactors gguf_rope_factors(const ConfigView&, const ModelSpec&);

// A config.json as Hugging Face would write it, from metadata, the shapes of the tensors, and the rope factors that the
// file has. Error{checkpoint|unsupported} naming the key.
std::string config_from_gguf(const gguf::File&, const GgufRopeFactors&);

}  // namespace fewbit
