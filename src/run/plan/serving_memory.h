#pragma once
// The bytes of a served model by layers and stages. Internal to src/run/plan.
#include "src/run/plan/linear_form.h"
#include "src/run/plan/serving_plan.h"

namespace fewbit {

inline constexpr int64_t kPrefillChunk = 2048;  // tokens of a pass, as EngineOptions::prefill_chunk

// How a linear lies on the GPU: form and the spec of its codes there.
struct PlacedLinear {
  LinearForm form{};
  QuantSpec spec{};
};
// `ranks`: that share the model.
PlacedLinear place(const ServedLinear&, int64_t out, int64_t in, int ranks);

// All layers of rank 0 of `tp`, the fullest one: it adds the biases.
struct ServedBytes {
  ModelSpec rank{};                            // the op list of the rank
  std::vector<BlockBytes> loaded{}, stored{};  // by layer: on the GPU; as the checkpoint has it
  int64_t embed = 0, head = 0, stored_head = 0, norm = 0;
  bool head_is_embed = false;
};
ServedBytes bytes_of(const ServedModel&, const ServingJob&);

// Layers of stage s of `pp`.
LayerRange stage_layers(const ModelSpec&, int stage, int pp);
// The op list of some layers; embedding and head stay in it.
ModelSpec layers_of(const ModelSpec&, LayerRange);

ServingMemory stage_memory(const ServedBytes&, const ServingJob&, int stage);

}  // namespace fewbit
