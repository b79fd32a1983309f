#include "src/eval/verify_files.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <thread>

#include "formats/container.h"
#include "formats/guarded_json.h"
#include "src/core/digest.h"
#include "src/core/file_io.h"
#include "src/core/files/checksums.h"
#include "src/core/files/sha256.h"
#include "src/core/parallel.h"
#include "src/eval/origin.h"

namespace fewbit {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

constexpr const char* kReport = "quant_report.json";
constexpr const char* kReadme = "README.md";
constexpr int kDigests = 2, kNewest = 2;  // schemas of the report: the first with digests, the last that is known

// The files of the folder; folders in it are none of a checkpoint's.
std::set<std::string> names_in(const fs::path& dir, VerifyResult& result) {
  std::set<std::string> names;
  std::error_code ec;
  for (fs::directory_iterator it(dir, ec), end; !ec && it != end; it.increment(ec)) {
    std::error_code unreadable;
    const std::string name = it->path().filename().string();
    if (it->is_regular_file(unreadable))
      names.insert(name);
    else
      result.warnings.push_back({.file = name, .what = "is no file; nothing that was written here"});
  }
  if (ec) fail(ErrorKind::io, dir.string() + ": cannot read the folder: " + ec.message());
  return names;
}

// The digests of several files or tensors, side by side. One that cannot be read gets the reason instead.
class Digests {
 public:
  Digests(const VerifyProgress& progress, std::string phase) : progress_(progress), phase_(std::move(phase)) {}

  void add(int64_t bytes, std::function<std::string()> digest) {
    total_ += bytes;
    jobs_.push_back({bytes, std::move(digest)});
  }
  std::vector<std::string> all() {
    std::vector<std::string> found(jobs_.size());
    parallel_for(static_cast<int64_t>(jobs_.size()), 1, [&](int64_t begin, int64_t end) {
      for (auto i = static_cast<size_t>(begin); i < static_cast<size_t>(end); ++i) {
        try {
          found[i] = jobs_[i].digest();
        } catch (const Error& e) {
          found[i] = e.what();
        }
        advance(jobs_[i].bytes);
      }
    });
    return found;
  }

 private:
  struct Job {
    int64_t bytes;
    std::function<std::string()> digest;
  };
  void advance(int64_t bytes) {
    done_ += bytes;
    if (progress_ && std::this_thread::get_id() == caller_)
      progress_(phase_, static_cast<double>(done_) / static_cast<double>(std::max<int64_t>(1, total_)));
  }
  const VerifyProgress& progress_;
  const std::string phase_;
  const std::thread::id caller_ = std::this_thread::get_id();
  std::vector<Job> jobs_{};
  int64_t total_ = 0;
  std::atomic<int64_t> done_ = 0;
};

std::string differs(const std::string& found, const std::string& expected, const char* said_by) {
  return fmt::format("digest {}, {} says {}", found, said_by, expected);
}

class FileCheck {
 public:
  FileCheck(const fs::path& dir, VerifyResult& result, const VerifyProgress& progress)
      : dir_(dir), result_(result), progress_(progress), names_(names_in(dir, result)) {}

  void run() {
    if (!names_.count(kReport))
      fail(ErrorKind::checkpoint, fmt::format("{}: no {}; verify compares a checkpoint that `quantize` or `convert to` "
                                              "wrote",
                                              dir_.string(), kReport));
    const std::string text = text_or_empty(dir_ / kReport);
    report_ = json_or_discarded(text, kTableJson);
    const bool readable = report_.is_object() && report_.contains("linears") && report_["linears"].is_array();
    check_sums();
    if (!readable) {
      if (changed_.empty())
        fail(ErrorKind::checkpoint,
             fmt::format("{}/{}: not a report of `quantize` or `convert to`", dir_.string(), kReport));
    } else if (!changed_.count(kReport)) {
      check_report(text);
    }
    for (const auto& [file, what] : changed_)  // where no tensor of it is named
      if (!named_.count(file)) result_.problems.push_back({.file = file, .what = what});
  }

 private:
  void problem(const std::string& file, std::string what) {
    result_.problems.push_back({.file = file, .what = std::move(what)});
  }

  // Every file of SHA256SUMS; what differs goes to changed_.
  void check_sums() {
    if (!names_.count(kChecksumsFile)) {
      if (schema() >= kDigests)
        problem(kChecksumsFile, "is missing");
      else
        result_.unchecked.emplace_back("files as a whole (no SHA256SUMS)");
      return;
    }
    const ReadChecksums sums = read_checksums(text_or_empty(dir_ / kChecksumsFile));
    for (const std::string& what : sums.problems) problem(kChecksumsFile, what);
    if (!sums.problems.empty()) return;  // then the digests of the report say which files are as they were
    Digests digests(progress_, "SHA-256 of the files");
    std::vector<std::pair<std::string, std::string>> listed;
    for (const auto& [name, sha256] : sums.files) {
      if (!names_.count(name)) {
        (name == kReadme ? result_.warnings : result_.problems).push_back({.file = name, .what = "is missing"});
        continue;
      }
      listed.emplace_back(name, sha256);
      std::error_code ec;
      const auto bytes = fs::file_size(dir_ / name, ec);
      digests.add(ec ? 0 : static_cast<int64_t>(bytes), [file = dir_ / name] { return sha256_of_file(file); });
    }
    const std::vector<std::string> found = digests.all();
    for (size_t i = 0; i < listed.size(); ++i) {
      const auto& [name, expected] = listed[i];
      if (found[i] == expected) continue;
      if (name == kReadme)
        result_.warnings.push_back({.file = name, .what = "was edited since it was written"});
      else
        changed_[name] = found[i].size() == kSha256Digits
                             ? fmt::format("SHA-256 {}, SHA256SUMS says {}", found[i], expected)
                             : found[i];
    }
    result_.files = static_cast<int64_t>(listed.size());
    for (const std::string& name : names_)
      if (!sums.files.count(name) && name != kChecksumsFile)
        result_.warnings.push_back({.file = name, .what = "is not in SHA256SUMS: added since it was written"});
  }

  int64_t schema() const {
    if (!report_.is_object() || !report_.contains("schema")) return 1;
    return report_["schema"].is_number_integer() ? report_["schema"].get<int64_t>() : 0;
  }

  void check_report(const std::string& text) {
    result_.origin = origin_of_report(text);
    if (schema() > kNewest)
      result_.warnings.push_back(
          {.file = kReport, .what = fmt::format("has schema {}, this version knows {}", schema(), kNewest)});
    for (const Json& l : report_["linears"])
      if (l.is_object() && l.contains("name") && l["name"].is_string()) linears_.insert(l["name"].get<std::string>());
    if (schema() < kDigests) {
      for (const char* what :
           {"tensors that are not quantized", "tokenizer and other companions", "the config's values"})
        result_.unchecked.emplace_back(std::string(what) + " (a report without digests)");
      return;
    }
    check_companions(strings_at("companions"));
    check_tensors(strings_at("tensors"));
    check_config();
  }

  std::map<std::string, std::string> strings_at(const char* key) {
    std::map<std::string, std::string> strings;
    if (!report_.contains(key) || !report_[key].is_object()) {
      problem(kReport, fmt::format("has no digests of its {}", key));
      return strings;
    }
    for (const auto& [name, value] : report_[key].items())
      strings[name] = value.is_string() ? value.get<std::string>() : "";
    return strings;
  }

  void check_companions(const std::map<std::string, std::string>& expected) {
    for (const auto& [name, digest] : expected) {
      if (changed_.count(name)) continue;
      if (!names_.count(name)) {
        if (std::none_of(result_.problems.begin(), result_.problems.end(),
                         [&](const auto& p) { return p.file == name; }))
          problem(name, "is missing");
        continue;
      }
      if (const std::string found = digest_of_file(dir_ / name); found != digest)
        problem(name, differs(found, digest, "the report"));
    }
  }

  // The linear that the report knows and the tensor belongs to; "" where there is none.
  std::string linear_of(const std::string& tensor) const {
    const std::string stem = tensor.substr(0, tensor.rfind('.'));
    return linears_.count(stem) ? stem : "";
  }

  void check_tensors(const std::map<std::string, std::string>& expected) {
    CheckpointIndex index;
    try {
      index = container_for(dir_).open(dir_);
    } catch (const Error& e) {
      if (changed_.empty()) problem("", e.what());
      return;
    }
    Digests digests(progress_, "digests of the tensors");
    std::vector<const TensorInfo*> tensors;
    for (const auto& [name, t] : index.tensors) {
      if (!expected.count(name)) {
        result_.problems.push_back({.file = file_of(index, t), .tensor = name, .what = "is not in the report"});
        continue;
      }
      tensors.push_back(&t);
      digests.add(t.bytes, [&index, &t = t] {
        const MappedFile& file = index.files[static_cast<size_t>(t.file)];
        std::string digest = digest_of_pieces(file.at(t.begin, t.bytes), t.bytes);
        file.forget(t.begin, t.bytes);
        return digest;
      });
    }
    const std::vector<std::string> found = digests.all();
    for (size_t i = 0; i < tensors.size(); ++i) {
      const TensorInfo& t = *tensors[i];
      if (found[i] == expected.at(t.name)) continue;
      named_.insert(file_of(index, t));
      result_.problems.push_back({.file = file_of(index, t),
                                  .tensor = t.name,
                                  .linear = linear_of(t.name),
                                  .what = differs(found[i], expected.at(t.name), "the report")});
    }
    for (const auto& [name, digest] : expected)
      if (!index.tensors.count(name))
        result_.problems.push_back({.file = "", .tensor = name, .linear = linear_of(name), .what = "is missing"});
    result_.tensors = static_cast<int64_t>(tensors.size());
  }

  static std::string file_of(const CheckpointIndex& index, const TensorInfo& t) {
    return index.files[static_cast<size_t>(t.file)].path().filename().string();
  }

  // What config.json says of the model, key by key.
  void check_config() {
    const Json then = report_.contains("config") ? report_["config"] : Json();
    const Json now = with_words_for_non_finite(json_or_discarded(text_or_empty(dir_ / "config.json"), kConfigJson));
    if (!then.is_object() || !now.is_object()) return;  // a file that is no JSON differs from its digest
    const auto shown = [](const Json& j, const std::string& key) {
      return j.contains(key) ? j[key].dump(-1, ' ', false, Json::error_handler_t::replace).substr(0, 80) : "not there";
    };
    std::set<std::string> keys;
    for (const Json* j : {&then, &now})
      for (const auto& [key, value] : j->items()) keys.insert(key);
    for (const char* stored : {"quantization_config", "compression_config"}) keys.erase(stored);
    for (const std::string& key : keys)
      if (!then.contains(key) || !now.contains(key) || then[key] != now[key])
        problem("config.json",
                fmt::format("{} is {}, and was {} when the weights were written: the model would compute "
                            "something else",
                            key, shown(now, key), shown(then, key)));
  }

  const fs::path& dir_;
  VerifyResult& result_;
  const VerifyProgress& progress_;
  const std::set<std::string> names_;
  Json report_{};
  std::set<std::string> linears_{};
  std::map<std::string, std::string> changed_{};  // file -> how its SHA-256 differs
  std::set<std::string> named_{};                 // files of which a tensor is named
};

}  // namespace

void verify_files(const fs::path& dir, VerifyResult& result, const VerifyProgress& progress) {
  FileCheck(dir, result, progress).run();
}

}  // namespace fewbit
