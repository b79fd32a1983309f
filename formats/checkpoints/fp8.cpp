// --format fp8: the `fp8` method of vLLM, SGLang and transformers: one scale per linear, or a scale per block as
// DeepSeek publishes its models. One scheme for all linears, but that experts may be MXFP4 where all names are those of
// DeepSeek V4; activations are always quantized.
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
  if (spec.grid == Grid::f4_e2m1) return {&packing_mxfp4_v4};
  if (in_blocks(spec)) return {&packing_fp8_block, &packing_fp8_block_v4};
  return {&packing_fp8, &packing_fp8_scalar};
}

// The linear that stands for all: one of FP8, where there is one.
const std::pair<const std::string, LinearFormat>& common_of(const QuantizationSummary& summary) {
  const auto f8 = std::find_if(summary.linears.begin(), summary.linears.end(),
                               [](const auto& l) { return l.second.spec.grid == Grid::f8_e4m3; });
  return f8 == summary.linears.end() ? *summary.linears.begin() : *f8;
}

std::string cannot_describe(const QuantizationSummary& summary) {
  if (summary.linears.empty()) return "";
  const auto& [first, common] = common_of(summary);
  for (const auto& [name, f] : summary.linears) {
    if (f.packing == &packing_mxfp4_v4) {
      if (common.packing == &packing_fp8_block_v4) continue;
      return name + " is MXFP4, which an fp8 config knows beside FP8 blocks by the names of DeepSeek V4 alone";
    }
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
  const QuantSpec& spec = common_of(summary).second.spec;
  const bool fp4 = std::any_of(summary.linears.begin(), summary.linears.end(),
                               [](const auto& l) { return l.second.packing == &packing_mxfp4_v4; });
  ordered_json ignored = summary.dense;
  ignored.push_back("lm_head");
  ordered_json c;
  c["quant_method"] = "fp8";
  c["fmt"] = "e4m3";
  c["activation_scheme"] = spec.activations == ActQuant::tensor ? "static" : "dynamic";
  if (in_blocks(spec)) c["weight_block_size"] = {spec.out_group, spec.group};
  if (spec.scale_dtype == DType::f8_e8m0) c["scale_fmt"] = "ue8m0";
  if (fp4) c["expert_dtype"] = "fp4";
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

namespace {

// What only the tensors tell: by whose names they go, the type of the scales, and that it is MXFP4.
LinearFormat completed(QuantSpec spec, const std::string& linear, const TensorSource& tensor) {
  const ConstTensorView weight = tensor(linear + ".weight");
  const ConstTensorView inverse = tensor(linear + ".weight_scale_inv"), plain = tensor(linear + ".scale");
  if (weight.data && (weight.dtype == DType::i8 || weight.dtype == DType::u8) && plain.data)
    return {.packing = &packing_mxfp4_v4, .spec = kMxfp4};
  const ConstTensorView scale = inverse.data ? inverse : plain;
  LinearFormat f{.packing = &packing_fp8, .spec = spec};
  if (in_blocks(spec))
    f.packing = plain.data && !inverse.data ? &packing_fp8_block_v4 : &packing_fp8_block;
  else if (inverse.data)
    f.packing = &packing_fp8_scalar;
  if (scale.data && (scale.dtype == DType::bf16 || scale.dtype == DType::f8_e8m0)) f.spec.scale_dtype = scale.dtype;
  if (scale.data && scale.dtype == DType::u8) f.spec.scale_dtype = DType::f8_e8m0;
  if (!in_blocks(spec) && weight.data && weight.shape.rank() == 2) f.spec.out_group = weight.rows();
  return f;
}

}  // namespace

QuantizationSummary read_fp8(const ReadRequest& r, std::string& name) {
  if (r.config.str("fmt", "e4m3") != "e4m3") r.config.unsupported("fmt", "e4m3");
  name = "fp8";
  const QuantSpec spec = read_spec(r.config);
  QuantizationSummary out;
  for (const std::string& linear : r.linears) {
    const LinearFormat f = completed(spec, linear, r.tensor);
    if (fewbit_map::packed(r.tensor, linear, f))
      out.linears[linear] = f;
    else
      out.dense.push_back(linear);
  }
  return out;
}

constinit const CheckpointFormat format_fp8 = {
    .name = "fp8",
    .summary = "FP8, one scale per linear or per 128 x 128 block (DeepSeek)",
    .candidates = candidates,
    .write_config = write_config,
    .cannot_describe = cannot_describe,
    .published = true,
};

}  // namespace fewbit
