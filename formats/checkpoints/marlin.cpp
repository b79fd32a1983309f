// --format marlin: Marlin where the shape and the grid allow it, the general integer words elsewhere. The
// config is AutoGPTQ's for "checkpoint_format": "marlin" plus the "fewbit" object, which says how every
// linear is packed (docs/formats/marlin.md).
#include "formats/checkpoints/gptq_config.h"

namespace fewbit {
namespace {

std::vector<const Packing*> candidates(const QuantSpec&) { return {&packing_marlin, &packing_gptq_v2}; }

std::string write_config(const QuantizationSummary& summary) {
  return gptq_config::write(summary, {.checkpoint_format = "marlin", .map = gptq_config::Map::always});
}

ConfigFile side_file(const QuantizationSummary& summary) { return {"quantize_config.json", write_config(summary)}; }

// Weight-only integers.
bool is_default(const QuantSpec& spec, bool fp8_kv_cache) {
  return spec.grid == Grid::integer && spec.activations == ActQuant::none && !fp8_kv_cache;
}

}  // namespace

constinit const CheckpointFormat format_marlin = {
    .name = "marlin",
    .summary = "int4, int8 and FP8 weights for the GPU runner; others as GPTQ v2 words",
    .candidates = candidates,
    .write_config = write_config,
    .is_default = is_default,
    .side_file = side_file,
    .packed_ends = true,
    .f16_scales = true,
    .weight_only = true,
};

}  // namespace fewbit
