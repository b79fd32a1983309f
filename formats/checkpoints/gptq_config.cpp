#include "formats/checkpoints/gptq_config.h"

#include <algorithm>
#include <cctype>
#include <map>
#include <nlohmann/json.hpp>

#include "formats/checkpoints/fewbit_map.h"

namespace fewbit::gptq_config {
namespace {

using nlohmann::ordered_json;

std::string exactly(const std::string& name) {
  std::string regex = "^";
  for (char c : name) {
    if (!std::isalnum(static_cast<unsigned char>(c)) && c != '_') regex += '\\';
    regex += c;
  }
  return regex + '$';
}

// Linears that vLLM and SGLang run as one and look up in `dynamic` under the name of the whole.
struct FusedName {
  std::string whole;
  std::vector<std::string> parts;  // the last words of the names
};
const std::vector<FusedName>& fused_names() {
  static const std::vector<FusedName> all = {{"qkv_proj", {"q_proj", "k_proj", "v_proj"}},
                                             {"gate_up_proj", {"gate_proj", "up_proj"}}};
  return all;
}

using Rules = std::map<std::string, ordered_json>;  // by module: null = dense

// The rules of fused linears, where all parts of one have the same rule.
Rules rules_of_wholes(const Rules& rules) {
  Rules wholes;
  for (const auto& [name, rule] : rules) {
    const std::string prefix = name.substr(0, name.rfind('.') + 1);
    for (const FusedName& f : fused_names())
      if (std::all_of(f.parts.begin(), f.parts.end(),
                      [&](const std::string& part) {
                        const auto it = rules.find(prefix + part);
                        return it != rules.end() && it->second == rule;
                      }) &&
          name == prefix + f.parts[0])
        wholes[prefix + f.whole] = rule;
  }
  return wholes;
}

// Exact names; GPTQModel takes the first rule that matches.
ordered_json dynamic_rules(const QuantizationSummary& summary, const LinearFormat& common) {
  Rules rules;
  for (const std::string& name : summary.dense) rules[name] = nullptr;
  for (const auto& [name, f] : summary.linears)
    if (f.spec != common.spec)
      rules[name] = {{"bits", f.spec.bits}, {"group_size", f.spec.group}, {"sym", f.spec.symmetric}};
  rules.merge(rules_of_wholes(rules));
  ordered_json object = ordered_json::object();
  for (const auto& [name, rule] : rules)
    if (rule.is_null()) object["-:" + exactly(name)] = ordered_json::object();
  for (const auto& [name, rule] : rules)
    if (!rule.is_null()) object["+:" + exactly(name)] = rule;
  return object;
}

}  // namespace

std::string write(const QuantizationSummary& summary, const Options& options) {
  if (summary.linears.empty()) return "";
  const LinearFormat common = fewbit_map::most_common(summary);
  const auto act_order = [](const auto& entry) { return entry.second.act_order; };
  const bool mixed = std::any_of(summary.linears.begin(), summary.linears.end(),
                                 [&](const auto& entry) { return !fewbit_map::same(entry.second, common); });
  const std::string format =
      options.checkpoint_format.empty() ? std::string(common.packing->name) : options.checkpoint_format;
  ordered_json c;
  c["quant_method"] = "gptq";
  c["method"] = "gptq";
  c["checkpoint_format"] = format;
  c["format"] = format;
  c["bits"] = common.spec.bits;
  c["group_size"] = common.spec.group;
  c["desc_act"] = std::any_of(summary.linears.begin(), summary.linears.end(), act_order);
  c["sym"] = common.spec.symmetric;
  c["lm_head"] = summary.linears.count("lm_head") > 0;
  c["pack_dtype"] = "int32";
  if (options.dynamic == Dynamic::when_mixed)
    if (ordered_json rules = dynamic_rules(summary, common); !rules.empty()) c["dynamic"] = std::move(rules);
  if (options.map == Map::always || mixed) c["fewbit"] = ordered_json::parse(fewbit_map::text(summary));
  return c.dump(2);
}

}  // namespace fewbit::gptq_config
