#pragma once
// Presets whose config says more than the sizes of src/model/synth/synth_shapes.h: the configs of public models, less
// what belongs to towers, tokenizers and quantization.
#include <cstdint>
#include <span>
#include <string_view>

#include "src/model/synth/synth.h"

namespace fewbit {

struct SynthPublished {
  SynthPreset preset;
  std::string_view config;  // JSON; the language model in text_config where the public model has it there
  // > 0: layer_types, of which every so many is full_attention, the others `near`.
  int64_t full_every = 0;
  std::string_view near = "sliding_attention";
};
std::span<const SynthPublished> published_presets();
const SynthPublished* find_published(std::string_view name);  // null: a preset of synth_shapes.h, or none

}  // namespace fewbit
