#pragma once
// Five linears without bytes: what tests of the quantization configs write and read.
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "formats/checkpoint_format.h"
#include "tests/support/support.h"

namespace fewbit::test {

using nlohmann::json;

inline const std::vector<std::string> kLinears = {"model.layers.0.a", "model.layers.0.b", "model.layers.1.a",
                                                  "model.layers.1.b", "model.layers.10.a"};
using Present = std::map<std::string, std::pair<DType, Shape>>;

// The tensors that these linears would have on disk.
inline Present tensors_of(const QuantizationSummary& s) {
  Present out;
  for (const auto& [name, f] : s.linears)
    for (const TensorPlan& t : f.packing->tensors(f.spec, 256, 256, f.act_order))
      out[name + "." + t.suffix] = {t.dtype, t.shape};
  for (const std::string& name : kLinears)
    if (!s.linears.count(name)) out[name + ".weight"] = {DType::bf16, {256, 256}};
  return out;
}

struct Read {
  QuantizationSummary summary;
  std::string name;
};
inline Read read(const std::string& quantization_config, const Present& present, const ConfigFile& side = {}) {
  const std::string config =
      quantization_config.empty() ? "{}" : "{\"quantization_config\": " + quantization_config + "}";
  Read r;
  static const uint8_t somewhere = 0;
  const TensorSource tensor = [&](const std::string& name) -> ConstTensorView {
    const auto it = present.find(name);
    if (it == present.end()) return {};
    return {&somewhere, it->second.first, it->second.second, {}};
  };
  r.summary = read_quantization(config, side, kLinears, tensor, &r.name);
  return r;
}

inline Present with_suffix(const std::string& suffix) {
  Present out;
  for (const std::string& name : kLinears) out[name + suffix] = {DType::i32, {256, 256}};
  return out;
}

inline std::string difference(const QuantizationSummary& a, const QuantizationSummary& b) {
  for (const std::string& name : kLinears) {
    if (a.linears.count(name) != b.linears.count(name)) return name + " is packed in one only";
    if (!a.linears.count(name)) continue;
    const LinearFormat &x = a.linears.at(name), &y = b.linears.at(name);
    if (x.packing != y.packing)
      return name + ": " + std::string(x.packing->name) + " against " + std::string(y.packing->name);
    if (!(x.spec == y.spec)) return name + ": " + x.spec.str() + " against " + y.spec.str();
    if (x.act_order != y.act_order) return name + ": act_order differs";
  }
  return "";
}

inline LinearFormat format(const Packing& p, QuantSpec spec = {}, bool act_order = false) {
  return {&p, spec, act_order};
}

inline std::string complaint_of(const std::function<void()>& body) {
  try {
    body();
  } catch (const Error& e) {
    return e.what();
  }
  return "";
}

// E4M3 with scales in the spec's own type.
inline QuantSpec fp8(ActQuant a, int64_t group, int64_t out_group) {
  return {.grid = Grid::f8_e4m3, .bits = 8, .group = group, .out_group = out_group, .activations = a};
}

}  // namespace fewbit::test
