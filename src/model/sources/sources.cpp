#include "src/model/sources/sources.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <limits>
#include <thread>

#include "formats/container.h"
#include "src/core/digest.h"
#include "src/core/error.h"
#include "src/core/finite.h"
#include "src/core/host_memory.h"
#include "src/model/sources/source_records.h"

namespace fewbit {
namespace {

namespace fs = std::filesystem;

// The float tensors of one file, in its order, and the first element of each that is not finite.
class FiniteScan {
 public:
  explicit FiniteScan(std::vector<TensorInfo> tensors) : tensors_(std::move(tensors)), found_(tensors_.size()) {
    std::sort(tensors_.begin(), tensors_.end(), [](const auto& a, const auto& b) { return a.begin < b.begin; });
    for (auto& f : found_) f = kNone;
  }

  // Bytes [begin, end) of the file lie at `bytes`. An element belongs to the part that its last byte is in; what of it
  // lies before is in reach.
  void see(int64_t begin, int64_t end, const uint8_t* bytes) {
    auto t = std::upper_bound(tensors_.begin(), tensors_.end(), begin,
                              [](int64_t at, const TensorInfo& info) { return at < info.begin + info.bytes; });
    for (; t != tensors_.end() && t->begin < end; ++t) {
      const int64_t width = bytes_of(t->dtype);
      const int64_t first = std::max<int64_t>(0, begin - t->begin) / width;
      const int64_t last = std::min(t->bytes, end - t->begin) / width;
      if (last <= first) continue;
      const int64_t bad = first_not_finite(t->dtype, bytes + (t->begin + first * width - begin), last - first);
      if (bad >= 0) lower(found_[static_cast<size_t>(t - tensors_.begin())], first + bad);
    }
  }

  std::vector<NotFinite> found() const {
    std::vector<NotFinite> all;
    for (size_t i = 0; i < tensors_.size(); ++i)
      if (found_[i] != kNone) all.push_back({tensors_[i].name, found_[i]});
    return all;
  }

 private:
  static constexpr int64_t kNone = std::numeric_limits<int64_t>::max();
  static void lower(std::atomic<int64_t>& least, int64_t value) {
    int64_t now = least;
    while (value < now && !least.compare_exchange_weak(now, value)) {
    }
  }
  std::vector<TensorInfo> tensors_;
  std::vector<std::atomic<int64_t>> found_;
};

struct FileToRead {
  fs::path path;
  std::vector<TensorInfo> floats;
};

// As the container has them: experts in their stacks, tensors of GGUF by its own names. Nothing stays mapped.
std::vector<FileToRead> files_of(const fs::path& model) {
  const CheckpointIndex index = container_for(model).open(model);
  std::vector<FileToRead> files;
  files.reserve(index.files.size());
  for (const MappedFile& f : index.files) files.push_back({f.path(), {}});
  for (const auto& [name, t] : index.tensors)
    if (can_be_infinite(t.dtype)) files[static_cast<size_t>(t.file)].floats.push_back(t);
  return files;
}

class Reading {
 public:
  Reading(const SourceReading& options, int64_t bytes)
      : options_(options), total_(bytes), drop_(bytes > host_memory_left().bytes / 2) {}

  SourceFile read(FileToRead& file) {
    FiniteScan scan(std::move(file.floats));
    SourceFile f = state_of_file(file.path);
    f.digest = digest_of_file(
        file.path, {.see = [&](int64_t begin, int64_t end, const uint8_t* bytes) { scan.see(begin, end, bytes); },
                    .done = [&](int64_t bytes) { advance(bytes); },
                    // A model that fits memory beside what else is in it is read a second time from there.
                    .drop_pages = drop_});
    if (!same_state(f, state_of_file(file.path)))
      fail(ErrorKind::io, file.path.string() + ": changed while it was read; wait for its writer and start again");
    f.not_finite = scan.found();
    return f;
  }

 private:
  void advance(int64_t bytes) {
    if (options_.stop && *options_.stop) fail(ErrorKind::stopped, "the model is not read to its end");
    done_ += bytes;
    if (options_.progress && std::this_thread::get_id() == caller_)
      options_.progress(static_cast<double>(done_) / static_cast<double>(total_));
  }
  const SourceReading& options_;
  const std::thread::id caller_ = std::this_thread::get_id();
  const int64_t total_;
  const bool drop_;
  std::atomic<int64_t> done_ = 0;
};

}  // namespace

std::vector<SourceFile> read_sources(const fs::path& model, const SourceReading& options) {
  std::vector<FileToRead> files = files_of(model);
  std::vector<SourceFile> known, sources(files.size());
  for (const fs::path& folder : {options.run, options.user})
    if (!options.rehash)
      for (SourceFile& f : recorded_sources(folder, model)) known.push_back(std::move(f));
  int64_t bytes = 0;
  for (size_t i = 0; i < files.size(); ++i) {
    const SourceFile now = state_of_file(files[i].path);
    const auto it = std::find_if(known.begin(), known.end(), [&](const SourceFile& f) { return same_state(f, now); });
    if (it != known.end())
      sources[i] = *it;
    else
      bytes += now.bytes;
  }
  Reading reading(options, bytes);
  for (size_t i = 0; i < files.size(); ++i)
    if (sources[i].name.empty()) sources[i] = reading.read(files[i]);
  if (options.record)
    for (const fs::path& folder : {options.run, options.user}) record_sources(folder, model, sources);
  return sources;
}

std::string digests_of(const std::vector<SourceFile>& sources) {
  std::string all;
  for (const SourceFile& f : sources) all += (all.empty() ? "" : " ") + f.digest;
  return all;
}

std::string not_finite_lines(const fs::path& model, const std::vector<SourceFile>& sources) {
  constexpr int kMost = 12;
  const fs::path folder = fs::is_directory(model) ? model : model.parent_path();
  std::string lines;
  int count = 0;
  for (const SourceFile& f : sources)
    for (const NotFinite& t : f.not_finite)
      if (++count <= kMost)
        lines += fmt::format("{}{}: tensor '{}': expected finite values, found NaN or infinity first at element {}",
                             lines.empty() ? "" : "\n", (folder / f.name).string(), t.tensor, t.index);
  if (count > kMost) lines += fmt::format("\n… and {} tensors more", count - kMost);
  return lines;
}

fs::path user_cache_folder() {
  for (const auto& [variable, below] : {std::pair{"XDG_CACHE_HOME", "fewbit"}, {"HOME", ".cache/fewbit"}})
    if (const char* base = std::getenv(variable); base && fs::path(base).is_absolute()) return fs::path(base) / below;
  return {};
}

}  // namespace fewbit
