#pragma once
// The shapes behind the presets of src/model/synth/synth.h, and the configs that the public models have.
#include <cstdint>
#include <string>

#include "src/model/synth/synth.h"

namespace fewbit {

struct SynthKind;  // the family, and what its config says beside the sizes

struct SynthShape {
  SynthPreset preset;
  const SynthKind* kind;
  int64_t hidden, ff, layers, heads, kv_heads, head_dim, vocab, positions;
  double theta;  // rope
  int64_t bos, eos;
  double llama3_factor = 0;                       // rope scaling of type llama3; 0 = none
  bool tied = false;                              // the head is the embedding
  int64_t experts = 0, top_k = 0, expert_ff = 0;  // of a mixture of experts; 0 = none
  int64_t window = 0;                             // of the layers that have one
};
// Error{usage} with the known names.
const SynthShape& synth_shape(const std::string& name);

// config.json with `layers` layers, not quantized; generation_config.json. Both as JSON text.
std::string synth_config(const SynthShape&, int64_t layers);
std::string synth_generation_config(const SynthShape&);

}  // namespace fewbit
