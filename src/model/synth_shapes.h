#pragma once
// The shapes behind the presets of src/model/synth.h, and the configs that the public models have.
#include <cstdint>
#include <string>

#include "src/model/synth.h"

namespace fewbit {

struct SynthShape {
  SynthPreset preset;
  enum Family : uint8_t { llama, qwen3, qwen3_moe, mixtral, gemma2, gemma3, phi3 } family;
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
