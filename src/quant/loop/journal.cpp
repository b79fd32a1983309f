#include "src/quant/loop/journal.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "formats/container.h"
#include "src/core/digest.h"
#include "src/quant/loop/identity.h"

namespace fewbit {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

fs::path log_of(const fs::path& partial) { return partial / "journal"; }

struct Log {
  std::vector<std::string> records;  // without their digests, up to the first line that is not what was written
  std::vector<int64_t> ends;         // in the file, of each
  bool damaged = false;              // a whole line is not what was written: no crash leaves that behind
};

Log read_log(const fs::path& partial) {
  Log log;
  std::error_code ec;
  if (!fs::exists(log_of(partial), ec)) return log;
  const std::string text = File::read(log_of(partial)).read_all();
  for (size_t at = 0; at < text.size();) {
    const size_t end = text.find('\n', at);
    if (end == std::string::npos) break;  // torn: the crash came while it was written
    const std::string_view line = std::string_view(text).substr(at, end - at);
    log.damaged = line.size() <= kDigestDigits || line[kDigestDigits] != ' ' ||
                  line.substr(0, kDigestDigits) != digest_of(line.substr(kDigestDigits + 1));
    if (log.damaged) break;
    log.records.emplace_back(line.substr(kDigestDigits + 1));
    log.ends.push_back(static_cast<int64_t>(at = end + 1));
  }
  return log;
}

struct Sealed {
  int64_t bytes = 0;
  std::string digest;
  std::vector<LinearRecord> linears;
};

// The record of block `layer`; nothing where it is another record. Its digest was right, so that a shape that it
// should not have means a hand at work, which must not end the program.
std::optional<Sealed> sealed_from(const std::string& record, int64_t layer) {
  try {
    const Json j = Json::parse(record);
    if (!j.is_object() || !j.contains("layer") || j["layer"] != layer) return std::nullopt;
    Sealed s{j.at("bytes").get<int64_t>(), j.at("digest").get<std::string>(), {}};
    for (const Json& l : j.at("linears")) s.linears.push_back(linear_record_from_json(l.dump()));
    return s;
  } catch (const Json::exception&) {
    return std::nullopt;
  }
}

bool is_whole(const fs::path& file, const Sealed& s) {
  std::error_code ec;
  if (!fs::is_regular_file(file, ec) || static_cast<int64_t>(fs::file_size(file, ec)) != s.bytes) return false;
  try {
    return digest_of_file(file) == s.digest;
  } catch (const Error&) {  // the disk does not give it back: damaged, too
    return false;
  }
}

std::optional<std::string> finished_from(const std::string& record) {
  const Json j = Json::parse(record, nullptr, false);
  if (!j.is_object() || !j.contains("finished") || !j["finished"].is_string()) return std::nullopt;
  return j["finished"].get<std::string>();
}

}  // namespace

Journal::Journal(RunFolder& folder, const std::string& identity, Start start)
    : dir_(folder.dir()), folder_(&folder), log_(File::append(log_of(folder.dir()))) {
  if (start == Start::resume && log_->size() > 0)
    load(identity);
  else
    log_->cut(0);
  folder_->keep(!blocks_.empty());
  if (log_->size() > 0) return;
  append(identity);
  sync_folder(dir());
}

void Journal::load(const std::string& identity) {
  const Log log = read_log(dir());
  if (log.records.empty() && log.damaged)
    fail(ErrorKind::checkpoint, fmt::format("{}: the first record is damaged, so that nothing says what the sealed "
                                            "blocks belong to; begin anew with --restart",
                                            log_of(dir()).string()));
  if (!log.records.empty())
    if (const std::string differs = difference(log.records.front(), identity); !differs.empty())
      fail(ErrorKind::usage, fmt::format("{} was begun with other settings: {}; resume with the same command, or begin "
                                         "anew with --restart",
                                         dir().string(), differs));
  int64_t good = log.ends.empty() ? 0 : log.ends.front();
  if (log.damaged) note_ = "the journal was damaged; blocks behind the damage are done again";
  for (size_t i = 1; i < log.records.size(); ++i) {
    std::optional<Sealed> s = sealed_from(log.records[i], sealed_blocks());
    if (!s && finished_from(log.records[i])) break;  // a checkpoint that was not put in place is made again
    if (!s || !is_whole(block_file(sealed_blocks()), *s)) {
      note_ = fmt::format("block {} was damaged and is done again, with all after it", sealed_blocks());
      break;
    }
    blocks_.push_back(std::move(s->linears));
    good = log.ends[i];
  }
  if (good == log_->size()) return;
  log_->cut(good);
  log_->sync();
}

void Journal::append(const std::string& record) {
  log_->append_whole(digest_of(record) + " " + record + "\n");
  log_->sync();
}

fs::path Journal::block_file(int64_t layer) const {
  return dir() / fmt::format("block-{:05d}", layer) / "model.safetensors";
}

void Journal::seal(int64_t layer, const std::vector<NamedTensor>& tensors, const std::vector<LinearRecord>& records) {
  FEWBIT_ASSERT(layer == sealed_blocks());
  if (!folder_) {
    blocks_.emplace_back();
    return;
  }
  const fs::path file = block_file(layer), folder = file.parent_path();
  std::error_code ec;
  fs::remove_all(folder, ec);  // what a crash or damage left
  auto writer = container_safetensors.create(folder, WriterOptions{.shard_bytes = INT64_MAX});
  for (const NamedTensor& t : tensors) writer->add(t.name, t.tensor);
  writer->finish();
  sync_file(file);
  sync_folder(folder);
  sync_folder(dir());
  Json line = {{"layer", layer},
               {"bytes", File::read(file).size()},
               {"digest", digest_of_file(file)},
               {"linears", Json::array()}};
  for (const LinearRecord& r : records) line["linears"].push_back(Json::parse(to_json(r)));
  append(line.dump());
  blocks_.push_back(records);
  folder_->keep(true);
}

void Journal::finished(const fs::path& built) {
  append(Json{{"finished", digest_of_file(built / "quant_report.json")}}.dump());
}

bool holds_work(const fs::path& partial) {
  std::error_code ec;
  if (!fs::exists(log_of(partial), ec)) return false;
  const std::string text = File::read(log_of(partial)).read_all();
  return std::count(text.begin(), text.end(), '\n') > 1;
}

int64_t recorded_blocks(const fs::path& partial) {
  const Log log = read_log(partial);
  int64_t n = 0;
  for (size_t i = 1; i < log.records.size(); ++i) n += sealed_from(log.records[i], n).has_value();
  return n;
}

std::optional<std::string> finished_report(const fs::path& partial) {
  const Log log = read_log(partial);
  return log.records.empty() ? std::nullopt : finished_from(log.records.back());
}

}  // namespace fewbit
