#include "src/quant/journal/journal_records.h"

#include <nlohmann/json.hpp>

#include "src/core/digest.h"
#include "src/core/error.h"
#include "src/core/file_io.h"

namespace fewbit {

namespace fs = std::filesystem;
using Json = nlohmann::json;

fs::path log_of(const fs::path& partial) { return partial / "journal"; }

std::string line_of(const std::string& record) { return digest_of(record) + " " + record + "\n"; }

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
    at = end + 1;
  }
  return log;
}

std::optional<Sealed> sealed_from(const std::string& record) {
  try {
    const Json j = Json::parse(record);
    if (!j.is_object() || j.contains("layer") == j.contains("shard")) return std::nullopt;
    Sealed s;
    s.shard = j.contains("shard");
    j.at(s.shard ? "shard" : "layer").get_to(s.number);
    if (!s.shard && j.contains("ranges")) {
      for (const Json& r : j.at("ranges")) s.ranges.push_back({r.at(0), r.at(1), r.at(2)});
      if (s.ranges.empty()) return std::nullopt;
    } else {
      j.at("bytes").get_to(s.bytes);
      j.at("digest").get_to(s.digest);
    }
    if (s.shard) {
      j.at("blocks").get_to(s.covered);
      j.at("sha256").get_to(s.written.sha256);
      j.at("tensors").get_to(s.written.tensors);
    } else {
      for (const Json& l : j.at("linears")) s.linears.push_back(linear_record_from_json(l.dump()));
    }
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

Survivors survivors_of(const std::vector<Sealed>& records, const std::function<bool(const Sealed&)>& whole) {
  Survivors kept;
  int64_t covered = 0, blocks = 0;
  for (const Sealed& s : records) {
    if (!s.shard) {
      ++blocks;
      continue;
    }
    const bool possible = s.covered >= covered && s.covered <= blocks;  // else by whatever hand
    if (!possible || !whole(s)) break;
    covered = s.covered;
    ++kept.shards;
  }
  kept.blocks = covered;
  for (const Sealed& s : records)
    if (!s.shard && s.number == kept.blocks && whole(s)) ++kept.blocks;
  return kept;
}

std::optional<std::string> finished_from(const std::string& record) {
  const Json j = Json::parse(record, nullptr, false);
  if (!j.is_object() || !j.contains("finished") || !j["finished"].is_string()) return std::nullopt;
  return j["finished"].get<std::string>();
}

namespace {

std::string with_linears(Json record, const std::vector<LinearRecord>& linears) {
  Json& all = record["linears"] = Json::array();
  for (const LinearRecord& r : linears) all.push_back(Json::parse(to_json(r)));
  return record.dump();
}

}  // namespace

std::string record_of_block(int64_t layer, const fs::path& file, const std::vector<LinearRecord>& linears) {
  return with_linears({{"layer", layer}, {"bytes", File::read(file).size()}, {"digest", digest_of_file(file)}},
                      linears);
}

std::string record_of_block(int64_t layer, const SealedRanges& ranges, const std::vector<LinearRecord>& linears) {
  Json all = Json::array();
  for (const SealedRange& r : ranges) all.push_back(Json::array({r.shard, r.tensor, r.digest}));
  return with_linears({{"layer", layer}, {"ranges", std::move(all)}}, linears);
}

std::string record_of_shard(int64_t shard, const fs::path& file, int64_t blocks, const WrittenFile& written) {
  return Json{{"shard", shard},
              {"bytes", static_cast<int64_t>(fs::file_size(file))},
              {"digest", digest_of_file(file)},
              {"blocks", blocks},
              {"sha256", written.sha256},
              {"tensors", written.tensors}}
      .dump();
}

}  // namespace fewbit
