// --format gguf[:TYPE]: one .gguf file for llama.cpp and what builds on it. The type decides the blocks;
// integer codes of a method go into the simple ones, the others are filled by encoders of their own
// (formats/gguf). There is no quantization_config: the file says its types (docs/formats/gguf.md).
#include "formats/checkpoint_format.h"

namespace fewbit {
namespace {

std::vector<const Packing*> candidates(const QuantSpec& spec) {
  if (spec.grid == Grid::f4_e2m1) return {&packing_gguf_mxfp4};
  switch (spec.bits) {
    case 4:
      return {spec.symmetric ? &packing_gguf_q4_0 : &packing_gguf_q4_1};
    case 5:
      return {spec.symmetric ? &packing_gguf_q5_0 : &packing_gguf_q5_1};
    default:
      return {&packing_gguf_q8_0};
  }
}

std::string write_config(const QuantizationSummary&) { return ""; }

}  // namespace

constinit const CheckpointFormat format_gguf = {
    .name = "gguf",
    .summary = "one file for llama.cpp; gguf:TYPE chooses the blocks",
    .candidates = candidates,
    .write_config = write_config,
    .packed_ends = true,
    .gguf = true,
};

}  // namespace fewbit
