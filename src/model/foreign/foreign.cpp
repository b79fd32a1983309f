#include "src/model/foreign/foreign.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "formats/guarded_json.h"
#include "src/core/text/shown.h"

namespace fewbit {
namespace {

struct Method {
  std::string_view name;
  void (*take)(const NamedLinear&, Decoding&);
};
constexpr Method kMethods[] = {{"bitsandbytes", &take_bitsandbytes}, {"hqq", &take_hqq}, {"torchao", &take_torchao}};

}  // namespace

std::string foreign_method(const std::string& config_json) {
  const nlohmann::json j = json_or_discarded(config_json, kConfigJson);
  if (!j.is_object() || !j.contains("quantization_config")) return "";
  const nlohmann::json& q = j["quantization_config"];
  for (const Method& m : kMethods)
    if (q.is_object() && q.contains("quant_method") && q["quant_method"] == m.name) return std::string(m.name);
  return "";
}

std::string unrounded_inputs_note(const std::string& config_json) {
  if (foreign_method(config_json) != "torchao") return "";
  const nlohmann::json q = json_or_discarded(config_json, kConfigJson)["quantization_config"];
  if (!q.contains("quant_type")) return "";
  // The name of the config's class, at any depth (a config for each module has several), or torchao's older name of the
  // recipe: "Int8DynamicActivationInt8WeightConfig", "float8_dynamic_activation_float8_weight".
  const nlohmann::json flat = q["quant_type"].flatten();
  for (const auto& [key, value] : flat.items()) {
    if (!value.is_string()) continue;
    const auto& name = value.get_ref<const std::string&>();
    for (const char* part : {"DynamicActivation", "StaticActivation", "dynamic_activation", "static_activation"})
      if (name.find(part) != std::string::npos)
        return fmt::format(
            "torchao's {} rounds activations at run time; here they stay unrounded, so that results are those of the "
            "decoded weights alone",
            shown(name, 80));
  }
  return "";
}

WeightStore without_codes(const std::string& method, std::span<const NamedLinear> linears, WeightStore store) {
  return std::move(store).reindexed([&](const auto&, CheckpointIndex& index, WeightStore::Makers& makers) {
    Decoding decoding(index, makers);
    for (const Method& m : kMethods)
      if (m.name == method)
        for (const NamedLinear& l : linears) m.take(l, decoding);
    decoding.fail_if_any();
  });
}

}  // namespace fewbit
