#include "src/quant/output/digests.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "formats/guarded_json.h"
#include "src/core/error.h"
#include "src/core/file_io.h"
#include "src/core/files/checksums.h"
#include "src/quant/output/companions.h"

namespace fewbit {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr auto kLenient = Json::error_handler_t::replace;  // a path need not be UTF-8

Json object_in(const fs::path& file, const JsonBudget& budget) {
  Json j = ordered_json_or_discarded(text_or_empty(file), budget);
  return j.is_object() ? j : Json::object();
}

std::vector<fs::path> files_of(const fs::path& dir) {
  std::vector<fs::path> files;
  std::error_code ec;
  for (fs::directory_iterator it(dir, ec), end; !ec && it != end; it.increment(ec))
    if (std::error_code unreadable; it->is_regular_file(unreadable)) files.push_back(it->path());
  if (ec) fail(ErrorKind::io, dir.string() + ": cannot read the folder: " + ec.message());
  std::sort(files.begin(), files.end());
  return files;
}

const WrittenFile* find(const std::vector<WrittenFile>& written, const std::string& name) {
  const auto it = std::find_if(written.begin(), written.end(), [&](const WrittenFile& f) { return f.name == name; });
  return it == written.end() ? nullptr : &*it;
}

}  // namespace

std::string origin_json(const fs::path& model, const std::vector<SourceFile>& sources) {
  Json j = {{"model", model.string()}, {"files", Json::array()}};
  for (const SourceFile& f : sources)
    j["files"].push_back({{"name", f.name}, {"bytes", f.bytes}, {"digest", f.digest}});
  const Json report = object_in(model / "quant_report.json", kTableJson);
  for (const char* key : {"made_by", "made_from"}) j[key] = report.value(key, Json());
  return j.dump(-1, ' ', false, kLenient);
}

std::string model_config_json(const fs::path& dir) {
  Json config = with_words_for_non_finite(object_in(dir / "config.json", kConfigJson));
  for (const char* key : {"quantization_config", "compression_config"}) config.erase(key);
  return config.empty() ? "null" : config.dump();
}

std::map<std::string, std::string> companion_digests(const fs::path& dir, const std::vector<WrittenFile>& written) {
  std::map<std::string, std::string> digests;
  for (const fs::path& file : files_of(dir))
    if (const std::string name = file.filename().string();
        !find(written, name) && name != "README.md" && name != "quant_report.json" && name != kChecksumsFile)
      digests[name] = digest_of_file(file);
  return digests;
}

void write_checksums(const fs::path& dir, const std::vector<WrittenFile>& written) {
  Checksums sums;
  for (const fs::path& file : files_of(dir)) {
    const std::string name = file.filename().string();
    if (name == kChecksumsFile) continue;
    const WrittenFile* known = find(written, name);
    sums[name] = known ? known->sha256 : sha256_of_file(file);
  }
  write_text(dir / kChecksumsFile, checksums_text(sums));
}

}  // namespace fewbit
