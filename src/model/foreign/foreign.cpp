#include "src/model/foreign/foreign.h"

#include <nlohmann/json.hpp>

#include "formats/guarded_json.h"

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
