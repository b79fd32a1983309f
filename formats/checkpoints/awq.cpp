// --format awq: AutoAWQ's GEMM files, for vLLM, SGLang and transformers. The config has one bit width and one
// group size for all linears, and linears that stay dense are found by parts of their names.
#include <algorithm>
#include <nlohmann/json.hpp>

#include "formats/checkpoints/fewbit_map.h"
#include "formats/checkpoints/readers.h"
#include "src/core/error.h"

namespace fewbit {
namespace {

using nlohmann::ordered_json;

std::vector<const Packing*> candidates(const QuantSpec&) { return {&packing_awq}; }

std::string cannot_describe(const QuantizationSummary& summary) {
  if (summary.linears.empty()) return "";
  const LinearFormat common = fewbit_map::most_common(summary);
  for (const auto& [name, f] : summary.linears) {
    if (f.spec.group != common.spec.group)
      return name + " has group " + std::to_string(f.spec.group) + " and others " + std::to_string(common.spec.group) +
             "; an AWQ config has one group size for all";
    for (const std::string& dense : summary.dense)
      if (name.find(dense) != std::string::npos)
        return dense + " stays dense and is a part of the name " + name +
               "; readers of AWQ configs take parts of names";
  }
  return "";
}

// Symmetric grids are written with zero points of 8; our map says that they were symmetric.
bool needs_map(const QuantizationSummary& summary) {
  return std::any_of(summary.linears.begin(), summary.linears.end(),
                     [](const auto& entry) { return entry.second.spec.symmetric; });
}

std::string write_config(const QuantizationSummary& summary) {
  if (summary.linears.empty()) return "";
  ordered_json c;
  c["quant_method"] = "awq";
  c["bits"] = 4;
  c["group_size"] = fewbit_map::most_common(summary).spec.group;
  c["zero_point"] = true;
  c["version"] = "gemm";
  c["modules_to_not_convert"] = nullptr;
  if (!summary.dense.empty()) {
    c["modules_to_not_convert"] = summary.dense;
    c["modules_to_not_convert"].push_back("lm_head");
  }
  if (needs_map(summary)) c["fewbit"] = ordered_json::parse(fewbit_map::text(summary));
  return c.dump(2);
}

// The key that the config has, of AutoAWQ's name and llm-awq's.
const char* either(const ConfigObject& c, const char* key, const char* old) {
  return c.has(old) && !c.has(key) ? old : key;
}

}  // namespace

QuantizationSummary read_awq(const ReadRequest& r, std::string& name) {
  const ConfigObject& config = r.config;
  const std::string version = config.str("version", config.str("format", "gemm"));
  if (version != "gemm" && version != "GEMM") config.unsupported("version", "gemm");
  if (!config.flag("zero_point", true)) config.unsupported("zero_point", "true");
  if (config.flag("lm_head", false) && !r.tensor("lm_head.weight").data)
    fail(ErrorKind::unsupported, config.where + ".lm_head: found true; a quantized head is not supported");
  name = "awq";
  QuantizationSummary out;
  if (const auto fewbit = config.object("fewbit")) {
    fewbit_map::read(*fewbit, {&packing_awq}, r.linears, r.tensor, out);
    return out;
  }
  LinearFormat f{.packing = &packing_awq};
  const char* bits = either(config, "bits", "w_bit");
  f.spec.bits = fewbit_map::read_bits(config, nullptr, bits);
  if (f.spec.bits != 4) config.unsupported(bits, "4");
  f.spec.group = fewbit_map::read_group_size(config, nullptr, either(config, "group_size", "q_group_size"));
  f.spec.symmetric = false;
  for (const std::string& linear : r.linears) {
    if (fewbit_map::packed(r.tensor, linear, f)) {
      out.linears[linear] = f;
    } else {
      out.dense.push_back(linear);
    }
  }
  return out;
}

constinit const CheckpointFormat format_awq = {
    .name = "awq",
    .summary = "AWQ GEMM words for vLLM, SGLang and transformers",
    .candidates = candidates,
    .write_config = write_config,
    .cannot_describe = cannot_describe,
};

}  // namespace fewbit
