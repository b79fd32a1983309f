// --format fp8: the `fp8` method of vLLM, SGLang and transformers: one scale per linear, or a scale per block as
// DeepSeek publishes its models. One scheme for all linears; activations are always quantized.
#include <algorithm>
#include <nlohmann/json.hpp>

#include "formats/checkpoints/fewbit_map.h"
#include "formats/checkpoints/readers.h"
#include "src/core/error.h"

namespace fewbit {
namespace {

using nlohmann::ordered_json;

bool in_blocks(const QuantSpec& spec) { return spec.group != -1; }

std::vector<const Packing*> candidates(const QuantSpec& spec) {
  if (in_blocks(spec)) return {&packing_fp8_block};
  return {&packing_fp8};
}

std::string cannot_describe(const QuantizationSummary& summary) {
  if (summary.linears.empty()) return "";
  const auto& [first, common] = *summary.linears.begin();
  for (const auto& [name, f] : summary.linears) {
    if (!in_blocks(f.spec) && f.spec.out_group == 1)
      return name + " has a scale per output, and an fp8 config knows one per linear or per block; " +
             "compressed-tensors and modelopt have words for it";
    const bool blocks = in_blocks(common.spec) && f.spec.out_group == common.spec.out_group;
    if (f.packing == common.packing && f.spec.group == common.spec.group && (blocks || !in_blocks(common.spec)) &&
        f.spec.activations == common.spec.activations)
      continue;
    return name + " (" + f.spec.str() + ") and " + first + " (" + common.spec.str() +
           ") differ; an fp8 config has one scheme for all";
  }
  return "";
}

std::string write_config(const QuantizationSummary& summary) {
  if (summary.linears.empty()) return "";
  const QuantSpec& spec = summary.linears.begin()->second.spec;
  ordered_json ignored = summary.dense;
  ignored.push_back("lm_head");
  ordered_json c;
  c["quant_method"] = "fp8";
  c["fmt"] = "e4m3";
  c["activation_scheme"] = spec.activations == ActQuant::tensor ? "static" : "dynamic";
  if (in_blocks(spec)) c["weight_block_size"] = {spec.out_group, spec.group};
  c["modules_to_not_convert"] = ignored;
  c["ignored_layers"] = std::move(ignored);  // vLLM's name of the same list
  return c.dump(2);
}

QuantSpec read_spec(const ConfigObject& config) {
  QuantSpec spec{.grid = Grid::f8_e4m3, .bits = 8, .group = -1, .scale_dtype = DType::f32};
  const std::string scheme = config.str("activation_scheme", "");
  if (scheme != "dynamic" && scheme != "static") config.unsupported("activation_scheme", "dynamic, static");
  spec.activations = scheme == "static" ? ActQuant::tensor : ActQuant::token;
  const std::vector<int64_t> block = config.integers("weight_block_size");
  if (block.empty()) return spec;
  if (block.size() != 2 || block[0] < 2 || block[1] < 2)
    config.wrong("weight_block_size", "[outputs, inputs] of a block");
  if (scheme == "static") config.unsupported("activation_scheme", "dynamic, where there are blocks");
  spec.out_group = block[0];
  spec.group = block[1];
  return spec;
}

}  // namespace

QuantizationSummary read_fp8(const ReadRequest& r, std::string& name) {
  if (r.config.str("fmt", "e4m3") != "e4m3") r.config.unsupported("fmt", "e4m3");
  name = "fp8";
  LinearFormat f{.spec = read_spec(r.config)};
  f.packing = in_blocks(f.spec) ? &packing_fp8_block : &packing_fp8;
  QuantizationSummary out;
  for (const std::string& linear : r.linears) {
    if (!fewbit_map::packed(r.tensor, linear, f)) {
      out.dense.push_back(linear);
      continue;
    }
    out.linears[linear] = f;
    if (!in_blocks(f.spec)) out.linears[linear].spec.out_group = r.tensor(linear + ".weight").rows();
  }
  return out;
}

constinit const CheckpointFormat format_fp8 = {
    .name = "fp8",
    .summary = "FP8, one scale per linear or per 128 x 128 block (DeepSeek)",
    .candidates = candidates,
    .write_config = write_config,
    .cannot_describe = cannot_describe,
};

}  // namespace fewbit
