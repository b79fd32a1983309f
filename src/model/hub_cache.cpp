#include "src/model/hub_cache.h"

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <string>
#include <vector>

#include "src/core/error.h"
#include "src/core/strings.h"

namespace fewbit {
namespace {

namespace fs = std::filesystem;

constexpr const char* kScheme = "hf-cache:";

// The folder of the first variable that is set, as the hub's own tools choose it.
fs::path cache_folder() {
  const auto set = [](const char* name) {
    const char* value = std::getenv(name);
    return std::string(value ? value : "");
  };
  for (const char* name : {"HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"})
    if (!set(name).empty()) return set(name);
  if (!set("HF_HOME").empty()) return fs::path(set("HF_HOME")) / "hub";
  if (!set("XDG_CACHE_HOME").empty()) return fs::path(set("XDG_CACHE_HOME")) / "huggingface/hub";
  return fs::path(set("HOME")) / ".cache/huggingface/hub";
}

// The snapshot of a model's folder in the cache; `revision` may be empty.
fs::path snapshot_of(const fs::path& model, const std::string& revision) {
  std::error_code ec;
  const fs::path snapshots = model / "snapshots";
  std::string hash = revision;
  std::ifstream ref(model / "refs" / (revision.empty() ? "main" : revision));
  if (std::string line; ref && std::getline(ref, line)) hash = line.substr(0, line.find_last_not_of(" \r\n") + 1);
  if (!hash.empty() && fs::is_directory(snapshots / hash, ec)) return snapshots / hash;
  std::vector<std::string> there;
  for (fs::directory_iterator it(snapshots, ec), end; !ec && it != end; it.increment(ec))
    if (it->is_directory()) there.push_back(it->path().filename().string());
  std::sort(there.begin(), there.end());
  if (revision.empty() && there.size() == 1) return snapshots / there[0];
  if (there.empty()) fail(ErrorKind::io, snapshots.string() + ": holds no snapshot; the download did not end");
  fail(ErrorKind::usage, model.string() + ": expected " + (revision.empty() ? "one snapshot" : "revision " + revision) +
                             ", found " + join(there, ", ") + "; give one as hf-cache:ORG/NAME@REVISION");
}

}  // namespace

fs::path hub_folder(const fs::path& model) {
  std::error_code ec;
  const std::string text = model.string();
  if (!starts_with(text, kScheme)) {
    const bool cached = fs::is_directory(model / "snapshots", ec) && !fs::exists(model / "config.json", ec);
    return cached ? snapshot_of(model, "") : model;
  }
  std::string name = text.substr(std::string(kScheme).size());
  const size_t at = name.find('@');
  const std::string revision = at == std::string::npos ? "" : name.substr(at + 1);
  name = name.substr(0, at);
  const fs::path folder = cache_folder() / ("models--" + join(split(name, '/'), "--"));
  if (!fs::is_directory(folder, ec))
    fail(ErrorKind::io, text + ": expected this model in the hub's cache, found no folder " + folder.string() +
                            "; HF_HUB_CACHE or HF_HOME name another cache");
  return snapshot_of(folder, revision);
}

}  // namespace fewbit
