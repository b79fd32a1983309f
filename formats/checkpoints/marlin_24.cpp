// --format marlin-24: symmetric integers in 2:4 sparsity, for the runner and for engines before they dropped the
// layout. The config is that of compressed-tensors with the sparsity stated (docs/formats/marlin.md); its reader reads
// it again.
#include <nlohmann/json.hpp>

#include "formats/checkpoint_format.h"

namespace fewbit {
namespace {

std::vector<const Packing*> candidates(const QuantSpec&) { return {&packing_ct_marlin_24}; }

std::string write_config(const QuantizationSummary& summary) {
  const std::string text = format_compressed_tensors.write_config(summary);
  if (text.empty()) return "";
  auto config = nlohmann::ordered_json::parse(text);
  // "dense" is the library's word for weights whose zeros no other compressor has taken out.
  config["sparsity_config"] = {{"format", "dense"}, {"sparsity_structure", "2:4"}};
  return config.dump(2);
}

}  // namespace

constinit const CheckpointFormat format_marlin_24 = {
    .name = "marlin-24",
    .summary = "symmetric int4 in 2:4 sparsity (sparse=2:4), three bits a weight; engines have dropped it",
    .candidates = candidates,
    .write_config = write_config,
    .fp8_kv_cache = true,
    .f16_scales = true,
    .two_of_four = true,
};

}  // namespace fewbit
