#pragma once
// The shapes of public models, and their config.json.
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "src/model/synth.h"

namespace fewbit {

struct ModelShape {
  SynthPreset preset;
  enum Family : uint8_t { llama, qwen3, qwen3_moe, mixtral, gemma2, gemma3, phi3 } family = llama;
  int64_t hidden = 0, ff = 0, layers = 0, heads = 0, kv_heads = 0, head_dim = 0, vocab = 0, positions = 0;
  double theta = 500000;
  double llama3_factor = 0;  // rope scaling of type llama3; 0 = none
  bool tied = false;
  int64_t bos = 128000, eos = 128001;
  int64_t experts = 0, top_k = 0, expert_ff = 0;  // of a mixture of experts
  int64_t window = 0;                             // of the layers that have one
};

const std::vector<ModelShape>& model_shapes();
// Error{usage} with the list.
const ModelShape& model_shape(const std::string& name);

// As the public model's, of `layers` layers.
nlohmann::ordered_json config_of(const ModelShape&, int64_t layers);
nlohmann::ordered_json generation_config_of(const ModelShape&);

}  // namespace fewbit
