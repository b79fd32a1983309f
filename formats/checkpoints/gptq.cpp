// --format gptq: for the readers of the ecosystem (vLLM, SGLang, transformers with GPTQModel). Symmetric
// grids are written as v1, asymmetric ones as v2, whose zero points can be 0. Linears that differ from the
// rest are told by GPTQModel's "dynamic" rules and, exactly, by the "fewbit" object (docs/formats/gptq.md).
#include "formats/checkpoints/gptq_config.h"

namespace fewbit {
namespace {

std::vector<const Packing*> candidates(const QuantSpec& spec) {
  const bool read_elsewhere = spec.bits <= 4 || spec.bits == 8;
  if (spec.symmetric || !read_elsewhere) return {&packing_gptq};
  return {&packing_gptq_v2};
}

std::string write_config(const QuantizationSummary& summary) {
  return gptq_config::write(summary, {.checkpoint_format = "", .dynamic = gptq_config::Dynamic::when_mixed});
}

ConfigFile side_file(const QuantizationSummary& summary) { return {"quantize_config.json", write_config(summary)}; }

}  // namespace

constinit const CheckpointFormat format_gptq = {
    .name = "gptq",
    .summary = "GPTQ words for vLLM, SGLang and transformers",
    .candidates = candidates,
    .write_config = write_config,
    .side_file = side_file,
    .packed_ends = true,
};

}  // namespace fewbit
