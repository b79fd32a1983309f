// `convert inspect` of a folder that is refused: what it says of itself, and how far the nearest family is from it.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "formats/guarded_json.h"
#include "src/core/strings.h"
#include "src/core/text/shown.h"
#include "src/model/archs.h"
#include "src/model/weight_store.h"
#include "tools/cli/convert/convert_commands.h"

namespace fewbit::cli {
namespace {

using nlohmann::ordered_json;
constexpr size_t kLongValue = 100;  // characters of a value in the table; the JSON has it whole

// "model.layers.7.mlp.experts.12.w1" -> "model.layers.N.mlp.experts.N.w1".
std::string pattern_of(const std::string& name) {
  std::string out;
  for (const std::string& part : split(name, '.')) {
    const bool number = !part.empty() && part.find_first_not_of("0123456789") == std::string::npos;
    (out += out.empty() ? "" : ".") += number ? "N" : part;
  }
  return out;
}

// The patterns of the tensors that a class has under this config; empty where it cannot have it at all, with the
// reason.
std::set<std::string> patterns_of(const ordered_json& config, const std::string& class_name, std::string& why_not) {
  std::set<std::string> patterns;
  try {
    ordered_json other = config;
    other["architectures"] = {class_name};
    other.erase("model_type");
    const ModelSpec spec = build_spec(ConfigView::parse(python_json(other), "config.json read as " + class_name));
    for (const NamedDense& t : dense_tensors_of(spec)) patterns.insert(pattern_of(t.name));
    for (const NamedLinear& l : linears_of(spec)) patterns.insert(pattern_of(l.name + ".weight"));
  } catch (const Error& e) {
    why_not = e.what();
  }
  return patterns;
}

std::vector<std::string> without(const std::set<std::string>& these, const std::set<std::string>& those) {
  std::vector<std::string> out;
  std::set_difference(these.begin(), these.end(), those.begin(), those.end(), std::back_inserter(out));
  return out;
}

// The class whose tensors differ least from those that are there; by its name where none can be built.
std::string nearest_by_tensors(const ordered_json& config, const std::set<std::string>& there, const std::string& own) {
  std::string nearest = nearest_class(own), why_not;
  size_t least = SIZE_MAX;
  for (const Family* f : families())
    for (const FamilyClass& c : f->classes) {
      if (c.name.empty()) continue;
      const std::set<std::string> known = patterns_of(config, std::string(c.name), why_not);
      const size_t apart = without(known, there).size() + without(there, known).size();
      if (known.empty() || apart >= least) continue;
      least = apart;
      nearest = c.name;
    }
  return nearest;
}

std::string lines(const char* title, const std::vector<std::string>& names) {
  std::string s = names.empty() ? "" : fmt::format("{}\n", title);
  for (const std::string& name : names) s += "  " + name + "\n";
  return s;
}

std::string config_lines(const ordered_json& config) {
  std::string s = "config.json:\n";
  for (const auto& [key, value] : config.items()) {
    s += fmt::format("  {}: {}\n", shown(key), shown(python_json(value), kLongValue));
  }
  return s;
}

}  // namespace

void inspect_refused(const Common& common, const std::filesystem::path& dir, const std::string& why) {
  const ordered_json config = ordered_json_or_discarded(json_text(dir / "config.json", kConfigJson), kConfigJson);
  if (!config.is_object()) return;  // the refusal says it all
  const WeightStore store = WeightStore::open(dir);
  std::map<std::string, int64_t> found;
  std::set<std::string> there;
  for (const auto& [name, t] : store.index().tensors) {
    ++found[fmt::format("{} {}", pattern_of(name), t.stored.empty() ? name_of(t.dtype) : t.stored)];
    there.insert(pattern_of(name));
  }
  const ordered_json names = config.value("architectures", ordered_json::array());
  const std::string own = names.is_array() && !names.empty() && names[0].is_string() ? names[0].get<std::string>() : "";
  const std::string nearest = nearest_by_tensors(config, there, own);
  std::string why_not;
  const std::set<std::string> known = patterns_of(config, nearest, why_not);
  const std::vector<std::string> unknown = known.empty() ? std::vector<std::string>() : without(there, known),
                                 missing = without(known, there);
  std::string s =
      fmt::format("{}: refused, {} in {} tensors and {} files\n", dir.string(), human_bytes(store.total_bytes()),
                  store.index().tensors.size(), store.index().files.size()) +
      config_lines(config) + "tensors, N a number:\n";
  for (const auto& [what, count] : found) s += fmt::format("  {:>6} x {}\n", count, what);
  s += fmt::format("nearest family: {}{}\n", nearest, why_not.empty() ? "" : ", which could not be built: " + why_not);
  s += lines("tensors here that it does not have:", unknown) + lines("tensors that it has and are not here:", missing);
  say(common, s);
  ordered_json tensors = ordered_json::array();
  for (const auto& [name, t] : store.index().tensors) {
    const auto dims = t.shape.dims();
    tensors.push_back({{"name", name},
                       {"dtype", t.stored.empty() ? name_of(t.dtype) : t.stored},
                       {"shape", std::vector<int64_t>(dims.begin(), dims.end())},
                       {"bytes", t.bytes}});
  }
  write_json(common, ordered_json{{"refused", why},
                                  {"architecture", own},
                                  {"nearest", nearest},
                                  {"config", with_words_for_non_finite(config)},
                                  {"unknown", unknown},
                                  {"missing", missing},
                                  {"bytes", store.total_bytes()},
                                  {"files", store.index().files.size()},
                                  {"tensors", tensors}}
                             .dump(1) +
                         "\n");
}

}  // namespace fewbit::cli
