#include "src/eval/origin.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "formats/guarded_json.h"
#include "src/core/digest.h"

namespace fewbit {
namespace {

using Json = nlohmann::json;

constexpr size_t kShown = 12;  // digits of a digest

std::string text_at(const Json& j, const char* key) {
  return j.is_object() && j.contains(key) && j[key].is_string() ? j[key].get<std::string>() : "";
}

// Of all weight files together.
std::string digest_of_files(const Json& files) {
  std::string all;
  for (const Json& f : files) all += text_at(f, "digest");
  return digest_of(all).substr(0, kShown);
}

}  // namespace

std::string origin_of_report(const std::string& report) {
  const Json j = json_or_discarded(report, kTableJson);
  std::string line = text_at(j, "made_by");
  const Json* from = j.is_object() && j.contains("made_from") ? &j["made_from"] : nullptr;
  if (line.empty() || !from) return line;
  while (from->is_object()) {
    const Json files = from->value("files", Json::array());
    line +=
        fmt::format(", from {} ({} files, digest {})", text_at(*from, "model"), files.size(), digest_of_files(files));
    if (const std::string by = text_at(*from, "made_by"); !by.empty()) line += ", made by " + by;
    if (!from->contains("made_from")) break;
    from = &(*from)["made_from"];
  }
  return line;
}

}  // namespace fewbit
