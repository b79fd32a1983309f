// --format modelopt: FP8 and NVFP4 as NVIDIA's Model Optimizer stores them, for vLLM, SGLang and TensorRT-LLM:
// `quantization_config` in config.json and the same in hf_quant_config.json. One algorithm for all linears is
// written; a map of algorithms (MIXED_PRECISION) is read.
#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>

#include "formats/checkpoints/fewbit_map.h"
#include "formats/checkpoints/readers.h"
#include "src/core/error.h"

namespace fewbit {
namespace {

using nlohmann::ordered_json;

constexpr QuantSpec kFp8{.grid = Grid::f8_e4m3, .bits = 8, .group = -1, .scale_dtype = DType::f32};

std::vector<const Packing*> candidates(const QuantSpec& spec) {
  if (spec.grid == Grid::f4_e2m1) return {&packing_modelopt_nvfp4};
  return {&packing_fp8};
}

std::string algorithm_of(const LinearFormat& f) {
  if (f.packing == &packing_modelopt_nvfp4) return f.spec.activations == ActQuant::none ? "W4A16_NVFP4" : "NVFP4";
  return f.spec.out_group == 1 ? "FP8_PER_CHANNEL_PER_TOKEN" : "FP8";
}

std::string cannot_describe(const QuantizationSummary& summary) {
  if (summary.linears.empty()) return "";
  const auto& [first, common] = *summary.linears.begin();
  for (const auto& [name, f] : summary.linears) {
    const std::string algorithm = algorithm_of(f);
    const bool is_static = f.spec.activations == ActQuant::tensor;
    if (algorithm == "FP8" && !is_static)
      return name + ": ModelOpt's FP8 with one scale per linear has static activations (acts=tensor)";
    if (algorithm == "FP8_PER_CHANNEL_PER_TOKEN" && is_static)
      return name + ": ModelOpt's FP8 with a scale per output has dynamic activations (acts=token)";
    if (algorithm != algorithm_of(common))
      return name + " (" + algorithm + ") and " + first + " (" + algorithm_of(common) +
             ") differ; one algorithm is written for all";
  }
  return "";
}

// Readers tell the family by the producer's name.
ordered_json producer() { return {{"name", "modelopt"}, {"version", "0.39.0"}}; }

ordered_json excluded(const QuantizationSummary& summary) {
  ordered_json list = summary.dense;
  list.push_back("lm_head");
  return list;
}

ordered_json arguments(const QuantSpec& spec, bool dynamic) {
  ordered_json j = {{"dynamic", dynamic}, {"num_bits", spec.bits}, {"type", "float"}};
  if (spec.group != -1) j["group_size"] = spec.group;
  return j;
}

std::string write_config(const QuantizationSummary& summary) {
  if (summary.linears.empty()) return "";
  const LinearFormat& f = summary.linears.begin()->second;
  ordered_json group = {{"weights", arguments(f.spec, false)}, {"targets", {"Linear"}}};
  if (f.spec.activations != ActQuant::none)
    group["input_activations"] = arguments(f.spec, f.spec.activations == ActQuant::token);
  ordered_json c;
  c["quant_method"] = "modelopt";
  c["quant_algo"] = algorithm_of(f);
  c["ignore"] = excluded(summary);
  c["config_groups"]["group_0"] = std::move(group);
  c["producer"] = producer();
  return c.dump(2);
}

ConfigFile side_file(const QuantizationSummary& summary) {
  const LinearFormat& f = summary.linears.begin()->second;
  ordered_json q = {{"quant_algo", algorithm_of(f)}, {"kv_cache_quant_algo", nullptr}};
  if (f.spec.group != -1) q["group_size"] = f.spec.group;
  q["exclude_modules"] = excluded(summary);
  return {"hf_quant_config.json", ordered_json{{"producer", producer()}, {"quantization", std::move(q)}}.dump(2)};
}

// The format of a linear with the named algorithm; what depends on the tensors comes from them.
LinearFormat format_of(const std::string& algorithm, const std::string& linear, const ReadRequest& r,
                       const ConfigObject& config) {
  const ConstTensorView weight = r.tensor(linear + ".weight");
  const bool is_static = r.tensor(linear + ".input_scale").data != nullptr;
  LinearFormat f{.packing = &packing_fp8, .spec = kFp8};
  if (algorithm == "FP8") {
    f.spec.out_group = weight.data ? weight.rows() : 1;
    f.spec.activations = is_static ? ActQuant::tensor : ActQuant::token;
  } else if (algorithm == "FP8_PER_CHANNEL_PER_TOKEN") {
    f.spec.activations = ActQuant::token;
  } else if (algorithm == "FP8_PB_WO") {
    f.packing = &packing_ct_float;
    f.spec.group = f.spec.out_group = 128;
  } else if (algorithm == "NVFP4" || algorithm == "W4A16_NVFP4") {
    f = {.packing = &packing_modelopt_nvfp4, .spec = kNvfp4};
    if (is_static && algorithm == "NVFP4") f.spec.activations = ActQuant::tensor;
  } else {
    config.unsupported("quant_algo", "FP8, FP8_PER_CHANNEL_PER_TOKEN, FP8_PB_WO, NVFP4, W4A16_NVFP4, MIXED_PRECISION");
  }
  return f;
}

}  // namespace

QuantizationSummary read_modelopt(const ReadRequest& r, std::string& name) {
  const ConfigObject config = r.config.object("quantization").value_or(r.config);
  const std::string algorithm = config.str("quant_algo", "");
  const bool mixed = algorithm == "MIXED_PRECISION";
  const auto layers = config.object("quantized_layers");
  if (mixed && !layers) config.wrong("quantized_layers", "an object of modules");
  name = "modelopt";
  QuantizationSummary out;
  for (const std::string& linear : r.linears) {
    const auto own = mixed ? layers->object(linear.c_str()) : std::optional(config);
    if (own) {
      const LinearFormat f = format_of(own->str("quant_algo", ""), linear, r, *own);
      if (fewbit_map::packed(r.tensor, linear, f)) {
        out.linears[linear] = f;
        continue;
      }
    }
    out.dense.push_back(linear);
  }
  return out;
}

constinit const CheckpointFormat format_modelopt = {
    .name = "modelopt",
    .summary = "FP8 and NVFP4 as ModelOpt stores them",
    .candidates = candidates,
    .write_config = write_config,
    .cannot_describe = cannot_describe,
    .side_file = side_file,
    .published = true,
};

}  // namespace fewbit
