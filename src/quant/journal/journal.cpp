#include "src/quant/journal/journal.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <functional>
#include <nlohmann/json.hpp>

#include "formats/shards.h"
#include "src/core/digest.h"
#include "src/core/parallel.h"
#include "src/core/strings.h"
#include "src/quant/journal/identity.h"

namespace fewbit {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

fs::path log_of(const fs::path& partial) { return partial / "journal"; }

std::string line_of(const std::string& record) { return digest_of(record) + " " + record + "\n"; }

struct Log {
  std::vector<std::string> records;  // without their digests, up to the first line that is not what was written
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
    at = end + 1;
  }
  return log;
}

// A file that a record speaks of: of a block, or a shard.
struct Sealed {
  bool shard = false;
  int64_t number = 0;  // of the block or shard
  int64_t bytes = 0;
  std::string digest;
  std::vector<LinearRecord> linears;  // of a block
  int64_t covered = 0;                // by a shard and those before: the first so many blocks
  WrittenFile written{};              // a shard's digests
};

// Nothing where it is another record. Its digest was right, so that a shape that it should not have means a hand at
// work, which must not end the program.
std::optional<Sealed> sealed_from(const std::string& record) {
  try {
    const Json j = Json::parse(record);
    if (!j.is_object() || j.contains("layer") == j.contains("shard")) return std::nullopt;
    Sealed s{
        .shard = j.contains("shard"), .number = 0, .bytes = j.at("bytes"), .digest = j.at("digest"), .linears = {}};
    j.at(s.shard ? "shard" : "layer").get_to(s.number);
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

// What can be gone on from: the first so many shards and blocks.
struct Survivors {
  int64_t shards = 0, blocks = 0;
  bool have(const Sealed& s) const { return s.number < (s.shard ? shards : blocks); }
};

// Shards up to the first that is damaged; the blocks in them, and those behind that are whole in files of their own.
Survivors survivors_of(const std::vector<Sealed>& records, const std::function<fs::path(const Sealed&)>& file) {
  Survivors kept;
  int64_t covered = 0, blocks = 0;
  for (const Sealed& s : records) {
    if (!s.shard) {
      ++blocks;
      continue;
    }
    const bool possible = s.covered >= covered && s.covered <= blocks;  // else by whatever hand
    if (!possible || !is_whole(file(s), s)) break;
    covered = s.covered;
    ++kept.shards;
  }
  kept.blocks = covered;
  for (const Sealed& s : records)
    if (!s.shard && s.number == kept.blocks && is_whole(file(s), s)) ++kept.blocks;
  return kept;
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
  std::error_code ec;
  folder_->keep(!blocks_.empty() || fs::exists(dir() / kSampled, ec));
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
  if (log.damaged) note_ = "the journal was damaged; blocks behind the damage are done again";
  take_names_back();
  std::vector<Sealed> sealed;
  bool all = true;
  for (size_t i = 1, blocks = 0, shards = 0; i < log.records.size(); ++i) {
    std::optional<Sealed> s = sealed_from(log.records[i]);
    if (!s && finished_from(log.records[i])) break;  // a checkpoint that was not put in place is made again
    all = s && s->number == static_cast<int64_t>(s->shard ? shards++ : blocks++);
    if (!all) break;
    sealed.push_back(*std::move(s));
  }
  const Survivors kept =
      survivors_of(sealed, [&](const Sealed& s) { return s.shard ? shard_file(s.number) : block_file(s.number); });
  const int64_t blocks = std::count_if(sealed.begin(), sealed.end(), [](const Sealed& s) { return !s.shard; });
  if (!all || kept.blocks < blocks)
    note_ = fmt::format("block {} was damaged and is done again, with all after it", kept.blocks);
  else if (kept.shards + kept.blocks < static_cast<int64_t>(sealed.size()))
    note_ = fmt::format("file {} of the checkpoint was damaged and is written again", kept.shards + 1);
  std::string text = log.records.empty() ? "" : line_of(log.records.front());
  for (size_t i = 0; i < sealed.size(); ++i) {
    Sealed& s = sealed[i];
    if (!kept.have(s)) continue;
    text += line_of(log.records[i + 1]);
    if (s.shard)
      shards_.push_back(s.covered), written_.push_back(std::move(s.written));
    else
      blocks_.push_back(std::move(s.linears));
  }
  rewrite(text);
  drop_covered();
}

// The log is what is left of it. Where that is its beginning, the rest is cut off.
void Journal::rewrite(const std::string& text) {
  const std::string now = log_->read_all();
  if (now == text) return;
  if (starts_with(now, text)) {
    log_->cut(static_cast<int64_t>(text.size()));
    return log_->sync();
  }
  const fs::path fresh = dir() / "journal.new";
  std::error_code ec;
  fs::remove(fresh, ec);
  File log = File::append(fresh);
  log.append_whole(text);
  log.sync();
  fs::rename(fresh, log_of(dir()));
  sync_folder(dir());
  log_.emplace(std::move(log));
}

void Journal::append(const std::string& record) {
  const std::lock_guard one_at_a_time(*appending_);
  log_->append_whole(line_of(record));
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
  unsafe_.push_back(layer);
  if (!since_safe_ || since_safe_->seconds() >= kSafeEvery) make_safe();
  Json line = {{"layer", layer},
               {"bytes", File::read(file).size()},
               {"digest", digest_of_file(file)},
               {"linears", Json::array()}};
  for (const LinearRecord& r : records) line["linears"].push_back(Json::parse(to_json(r)));
  append(line.dump());
  blocks_.push_back(records);
  folder_->keep(true);
}

// A file that is gone lies in a shard by now, which is safe.
void Journal::make_safe() {
  for (const int64_t layer : unsafe_) {
    const fs::path file = block_file(layer);
    try {
      sync_file(file);
      sync_folder(file.parent_path());
    } catch (const Error&) {
      std::error_code ec;
      if (fs::exists(file, ec)) throw;
    }
  }
  unsafe_.clear();
  sync_folder(dir());
  since_safe_.emplace();
}

fs::path Journal::shard_file(int64_t shard) const {
  return dir() / kBuilt / fmt::format("shard-{:05d}.safetensors", shard + 1);
}

CheckpointIndex Journal::open_block(int64_t layer) const {
  if (layer >= covered_blocks()) return container_safetensors.open(block_file(layer));
  CheckpointIndex all;
  for (int64_t k = 0, before = 0; k < shards() && before <= layer; before = shards_[static_cast<size_t>(k++)]) {
    if (shards_[static_cast<size_t>(k)] < layer) continue;
    CheckpointIndex one = container_safetensors.open(shard_file(k));
    for (auto& [name, info] : one.tensors) {
      info.file = static_cast<int>(all.files.size());
      all.tensors.emplace(name, std::move(info));
    }
    all.files.push_back(std::move(one.files.front()));
  }
  return all;
}

void Journal::seal_shard(int64_t blocks, WrittenFile written) {
  FEWBIT_ASSERT(blocks >= covered_blocks());
  const fs::path file = shard_file(shards());
  sync_file(file);
  sync_folder(file.parent_path());
  sync_folder(dir());
  append(Json{{"shard", shards()},
              {"bytes", static_cast<int64_t>(fs::file_size(file))},
              {"digest", digest_of_file(file)},
              {"blocks", blocks},
              {"sha256", written.sha256},
              {"tensors", written.tensors}}
             .dump());
  shards_.push_back(blocks);
  written_.push_back(std::move(written));
  drop_covered();
}

// Side by side, for a file system takes some 40 ms to let go of 100 MB.
void Journal::drop_covered() {
  parallel_for(covered_blocks(), 1, [&](int64_t begin, int64_t end) {
    std::error_code ec;
    for (int64_t layer = begin; layer < end; ++layer) fs::remove_all(block_file(layer).parent_path(), ec);
  });
}

std::vector<WrittenFile> Journal::written_shards() const {
  std::vector<WrittenFile> named = written_;
  for (size_t k = 0; k < named.size(); ++k) named[k].name = shard_name(k, named.size());
  return named;
}

void Journal::name_shards() {
  for (int64_t k = 0; k < shards(); ++k)
    fs::rename(shard_file(k), dir() / kBuilt / shard_name(static_cast<size_t>(k), static_cast<size_t>(shards())));
}

void Journal::take_names_back() {
  std::error_code ec;
  std::vector<fs::path> found;
  for (fs::directory_iterator it(dir() / kBuilt, ec), end; !ec && it != end; it.increment(ec))
    found.push_back(it->path());
  for (const fs::path& p : found) {
    const std::string name = p.filename().string();
    int number = name == shard_name(0, 1) ? 1 : 0, count = 0;
    if (number == 0 && std::sscanf(name.c_str(), "model-%5d-of-%5d.safetensors", &number, &count) != 2) continue;
    fs::rename(p, shard_file(number - 1), ec);
  }
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
  for (size_t i = 1; i < log.records.size(); ++i)
    if (const std::optional<Sealed> s = sealed_from(log.records[i]); s && !s->shard) ++n;
  return n;
}

std::optional<std::string> finished_report(const fs::path& partial) {
  const Log log = read_log(partial);
  return log.records.empty() ? std::nullopt : finished_from(log.records.back());
}

}  // namespace fewbit
