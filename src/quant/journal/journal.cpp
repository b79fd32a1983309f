#include "src/quant/journal/journal.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "formats/shards.h"
#include "src/core/digest.h"
#include "src/core/parallel.h"
#include "src/core/strings.h"
#include "src/quant/journal/identity.h"
#include "src/quant/journal/journal_records.h"

namespace fewbit {
namespace fs = std::filesystem;

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
  std::string damaged;
  RangeReader reader([this](int64_t shard) { return file_of_ranges(shard); });
  const Survivors kept = survivors_of(sealed, [&](const Sealed& s) {
    if (!s.ranges.empty()) return reader.are_whole(s.ranges, damaged);
    return is_whole(s.shard ? shard_file(s.number) : block_file(s.number), s);
  });
  const int64_t blocks = std::count_if(sealed.begin(), sealed.end(), [](const Sealed& s) { return !s.shard; });
  if (!all || kept.blocks < blocks)
    note_ = fmt::format("block {} was damaged{} and is done again, with all after it", kept.blocks,
                        damaged.empty() ? "" : fmt::format(" ({})", damaged));
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
      blocks_.push_back(std::move(s.linears)), ranges_.push_back(std::move(s.ranges));
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

void Journal::append(const std::string& record, bool safe) {
  const std::lock_guard one_at_a_time(*appending_);
  log_->append_whole(line_of(record));
  if (safe) log_->sync();
}

fs::path Journal::block_file(int64_t layer) const {
  return dir() / fmt::format("block-{:05d}", layer) / "model.safetensors";
}

void Journal::seal(int64_t layer, const std::vector<NamedTensor>& tensors, const std::vector<LinearRecord>& records) {
  FEWBIT_ASSERT(layer == sealed_blocks());
  std::optional<SealedRanges> ranges;
  if (folder_) {
    if (place_ && !tensors.empty()) ranges = place_(layer, tensors);
    if (!ranges) write_block(layer, tensors);
    append(ranges ? record_of_block(layer, *ranges, records) : record_of_block(layer, block_file(layer), records),
           false);
    folder_->keep(true);
  }
  {
    const std::lock_guard lock(*guard_);
    blocks_.push_back(folder_ ? records : std::vector<LinearRecord>{});
    ranges_.push_back(std::move(ranges).value_or(SealedRanges{}));
    if (folder_) unsafe_.push_back(layer);
  }
  if (!place_) make_safe_in_time();
}

void Journal::write_block(int64_t layer, const std::vector<NamedTensor>& tensors) {
  const fs::path folder = block_file(layer).parent_path();
  std::error_code ec;
  fs::remove_all(folder, ec);  // what a crash or damage left
  auto writer = container_safetensors.create(folder, WriterOptions{.shard_bytes = INT64_MAX});
  for (const NamedTensor& t : tensors) writer->add(t.name, t.tensor);
  writer->finish();
}

// A file that is gone lies in a shard by now, which is safe.
void Journal::make_safe_in_time() {
  std::set<fs::path> files;
  {
    const std::lock_guard lock(*guard_);
    if (unsafe_.empty() || since_safe_.seconds() < kSafeEvery) return;
    for (const int64_t layer : unsafe_) {
      const SealedRanges& ranges = ranges_[static_cast<size_t>(layer)];
      if (ranges.empty()) files.insert(block_file(layer));
      for (const SealedRange& r : ranges) files.insert(file_of_ranges(r.shard));
    }
    unsafe_.clear();
  }
  for (const fs::path& file : files) try {
      sync_file(file);
      sync_folder(file.parent_path());
    } catch (const Error&) {
      std::error_code ec;
      if (fs::exists(file, ec)) throw;
    }
  sync_folder(dir());
  {
    const std::lock_guard one_at_a_time(*appending_);
    log_->sync();
  }
  const std::lock_guard lock(*guard_);
  since_safe_ = {};
}

fs::path Journal::shard_file(int64_t shard) const {
  return dir() / kBuilt / fmt::format("shard-{:05d}.safetensors", shard + 1);
}

// A file whose shard came out otherwise than foreseen, while blocks lay in it.
fs::path Journal::set_aside_file(int64_t shard) const {
  return dir() / kBuilt / fmt::format("aside-{:05d}.safetensors", shard + 1);
}

fs::path Journal::file_of_ranges(int64_t shard) const {
  std::error_code ec;
  const fs::path aside = set_aside_file(shard);
  return fs::exists(aside, ec) ? aside : shard_file(shard);
}

void Journal::set_aside(int64_t shard) {
  fs::rename(shard_file(shard), set_aside_file(shard));
  sync_folder(dir() / kBuilt);
}

SealedRanges Journal::ranges(int64_t layer) const {
  const std::lock_guard lock(*guard_);
  return ranges_[static_cast<size_t>(layer)];
}

std::set<fs::path> Journal::files_of_ranges() const {
  std::set<int64_t> in;
  {
    const std::lock_guard lock(*guard_);
    for (auto layer = static_cast<size_t>(covered_blocks()); layer < ranges_.size(); ++layer)
      for (const SealedRange& r : ranges_[layer]) in.insert(r.shard);
  }
  std::set<fs::path> files;
  for (const int64_t shard : in) files.insert(file_of_ranges(shard));
  return files;
}

CheckpointIndex Journal::open_block(int64_t layer) const {
  if (layer >= covered_blocks()) {
    const SealedRanges in = ranges(layer);
    if (in.empty()) return container_safetensors.open(block_file(layer));
    return RangeReader::open(in, [this](int64_t shard) { return file_of_ranges(shard); });
  }
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
  append(record_of_shard(shards(), file, blocks, written));
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
  const std::set<fs::path> needed = files_of_ranges();
  std::error_code ec;
  for (int64_t shard = 0; shard < shards(); ++shard)
    if (const fs::path aside = set_aside_file(shard); !needed.count(aside)) fs::remove(aside, ec);
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
  append(nlohmann::json{{"finished", digest_of_file(built / "quant_report.json")}}.dump());
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
