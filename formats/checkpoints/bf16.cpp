// --format bf16: dense weights, nothing packed, no quantization_config.
#include "formats/checkpoint_format.h"

namespace fewbit {
namespace {

std::vector<const Packing*> candidates(const QuantSpec&) { return {}; }
std::string write_config(const QuantizationSummary&) { return ""; }

}  // namespace

constinit const CheckpointFormat format_bf16 = {
    .name = "bf16",
    .summary = "dense weights",
    .candidates = candidates,
    .write_config = write_config,
};

}  // namespace fewbit
