#include "formats/checkpoints/ct_transforms.h"

#include <cmath>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <set>
#include <vector>

#include "src/core/strings.h"

namespace fewbit::ct {
namespace {

using nlohmann::ordered_json;

// The inputs of linears that one group of a transform_config turns: QuantSpec::turn by name.
void read_turned(const ConfigObject& group, std::map<std::string, int64_t>& turned) {
  if (group.str("type", "") != "hadamard") group.unsupported("type", "hadamard");
  if (group.flag("randomize", false)) group.unsupported("randomize", "false");
  const int64_t run = group.integer("head_dim").value_or(0);
  if (run < 2 || (run & (run - 1)) != 0) group.unsupported("head_dim", "a power of two: inputs that a matrix turns");
  std::map<std::string, std::set<std::string>> at;
  for (const ConfigObject& a : group.objects("apply")) {
    const std::string location = a.str("location", "");
    if (location != "input" && location != "weight_input") a.unsupported("location", "input beside weight_input");
    if (!a.strings("ignore").empty()) a.unsupported("ignore", "nothing");
    for (const std::string& target : a.strings("targets")) {
      if (starts_with(target, "re:") || target == "Linear") a.unsupported("targets", "names of linears");
      at[location].insert(target);
    }
  }
  if (at["input"] != at["weight_input"])
    group.unsupported("apply", "input and weight_input for the same linears, whose products it then leaves alone");
  for (const std::string& name : at["input"]) turned[name] = run;
}

}  // namespace

std::map<std::string, int64_t> turned_inputs(const ConfigObject& config) {
  std::map<std::string, int64_t> turned;
  if (const auto transforms = config.object("transform_config"))
    if (const auto groups = transforms->object("config_groups"))
      for (const auto& [key, group] : groups->members()) read_turned(group, turned);
  return turned;
}

std::string transform_config(const QuantizationSummary& summary) {
  std::map<int64_t, std::vector<std::string>> turned;
  for (const auto& [name, format] : summary.linears)
    if (format.spec.turn) turned[format.spec.turn].push_back(name);
  ordered_json groups = ordered_json::object();
  for (const auto& [run, names] : turned) {
    ordered_json apply = ordered_json::array();
    for (const bool online : {true, false})
      apply.push_back({{"targets", names},
                       {"location", online ? "input" : "weight_input"},
                       {"inverse", !online},
                       {"ignore", ordered_json::array()}});
    groups["R4_" + std::to_string(run)] = {{"type", "hadamard"}, {"apply", std::move(apply)},
                                           {"randomize", false}, {"requires_grad", false},
                                           {"head_dim", run},    {"precision", "torch.float32"}};
  }
  if (groups.empty()) return "";
  ordered_json config;
  config["config_groups"] = std::move(groups);
  return config.dump();
}

uint8_t clip_of(const ConfigObject& activations, bool int4) {
  const auto kwargs = activations.object("observer_kwargs");
  if (!kwargs || !kwargs->has("clip_ratio")) return 100;
  if (!int4) kwargs->unsupported("clip_ratio", "none but for int4");
  const std::string shown = kwargs->shown("clip_ratio");
  char* end = nullptr;
  const double hundredths = 100 * std::strtod(shown.c_str(), &end);
  const bool number = end == shown.c_str() + shown.size() && hundredths > 0.5 && hundredths < 100.5;
  if (!number || std::fabs(hundredths - std::round(hundredths)) > 1e-6)
    kwargs->wrong("clip_ratio", "whole hundredths up to 1");
  return static_cast<uint8_t>(std::round(hundredths));
}

}  // namespace fewbit::ct
