#include "src/model/sources/source_records.h"

#include <fmt/format.h>
#include <signal.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstring>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>

#include "src/core/digest.h"
#include "src/core/error.h"

namespace fewbit {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

constexpr size_t kMostModels = 256;  // records in one folder; the oldest go
constexpr std::chrono::hours kUnfinished{1};

// The name of the record tells models apart by their place; that place is in it for people.
fs::path record_of(const fs::path& folder, const fs::path& model) {
  std::error_code ec;
  return folder / fmt::format("sources-{}.json", digest_of(fs::weakly_canonical(model, ec).string()));
}

Json json_of(const SourceFile& f) {
  Json j = {{"name", f.name},   {"bytes", f.bytes},   {"modified_ns", f.modified_ns}, {"changed_ns", f.changed_ns},
            {"inode", f.inode}, {"device", f.device}, {"digest", f.digest},           {"not_finite", Json::array()}};
  for (const NotFinite& t : f.not_finite) j["not_finite"].push_back({{"tensor", t.tensor}, {"index", t.index}});
  return j;
}

SourceFile source_from(const Json& j) {
  SourceFile f{.name = j.at("name"),
               .bytes = j.at("bytes"),
               .modified_ns = j.at("modified_ns"),
               .changed_ns = j.at("changed_ns"),
               .inode = j.at("inode"),
               .device = j.at("device"),
               .digest = j.at("digest"),
               .not_finite = {}};
  for (const Json& t : j.at("not_finite")) f.not_finite.push_back({t.at("tensor"), t.at("index")});
  return f;
}

// The process that writes a record under a temporary name, "sources-DIGEST.json.PID.tmp"; 0 for any other name.
pid_t writer_of(const fs::path& file) {
  const std::string number = file.stem().extension().string();  // ".PID"
  const bool ours = file.filename().string().rfind("sources-", 0) == 0 && file.extension() == ".tmp" &&
                    file.stem().stem().extension() == ".json" && number.size() > 1;
  pid_t pid = 0;
  if (!ours) return 0;
  const auto [next, error] = std::from_chars(number.data() + 1, number.data() + number.size(), pid);
  return error == std::errc() && next == number.data() + number.size() && pid > 0 ? pid : 0;
}

// What a killed run left: its process is gone, and the file has not been written to for an hour. The process alone
// would not do: the folder may be shared with another machine or container, whose processes are not seen here; a record
// is written there in a moment. The age alone would not do either: a process that was stopped may go on and finish.
bool left_behind(const fs::directory_entry& file) {
  const pid_t writer = writer_of(file.path());
  if (writer == 0 || ::kill(writer, 0) == 0 || errno != ESRCH) return false;
  std::error_code ec;
  const fs::file_time_type written = file.last_write_time(ec);
  return !ec && fs::file_time_type::clock::now() - written > kUnfinished;
}

void drop_leftovers(const fs::path& folder) {
  std::vector<fs::path> found;
  std::error_code ec;
  for (fs::directory_iterator it(folder, ec), end; !ec && it != end; it.increment(ec))
    if (left_behind(*it)) found.push_back(*it);
  for (const fs::path& file : found) fs::remove(file, ec);
}

void drop_oldest(const fs::path& folder) {
  std::vector<std::pair<fs::file_time_type, fs::path>> found;
  std::error_code ec;
  for (fs::directory_iterator it(folder, ec), end; !ec && it != end; it.increment(ec))
    if (it->path().filename().string().rfind("sources-", 0) == 0 && it->path().extension() == ".json")
      found.emplace_back(it->last_write_time(ec), *it);
  if (found.size() <= kMostModels) return;
  std::sort(found.begin(), found.end());
  for (size_t i = 0; i < found.size() - kMostModels; ++i) fs::remove(found[i].second, ec);
}

}  // namespace

SourceFile state_of_file(const fs::path& path) {
  struct stat st {};
  if (::stat(path.c_str(), &st) != 0)
    fail(ErrorKind::io, fmt::format("{}: cannot stat: {}", path.string(), std::strerror(errno)));
  const auto ns = [](const timespec& t) { return static_cast<int64_t>(t.tv_sec) * 1'000'000'000 + t.tv_nsec; };
  return {.name = path.filename().string(),
          .bytes = st.st_size,
          .modified_ns = ns(st.st_mtim),
          .changed_ns = ns(st.st_ctim),
          .inode = st.st_ino,
          .device = st.st_dev};
}

bool same_state(const SourceFile& a, const SourceFile& b) {
  return a.name == b.name && a.bytes == b.bytes && a.modified_ns == b.modified_ns && a.changed_ns == b.changed_ns &&
         a.inode == b.inode && a.device == b.device;
}

std::vector<SourceFile> recorded_sources(const fs::path& folder, const fs::path& model) {
  if (folder.empty()) return {};
  std::ifstream in(record_of(folder, model), std::ios::binary);
  try {
    const std::string text{std::istreambuf_iterator<char>(in), {}};
    const size_t line = text.find('\n');
    // A record with another digest than its own was torn or edited.
    if (line == std::string::npos || text.substr(0, line) != digest_of(std::string_view(text).substr(line + 1)))
      return {};
    const Json j = Json::parse(text.substr(line + 1));
    std::vector<SourceFile> files;
    for (const Json& f : j.at("files")) files.push_back(source_from(f));
    return files;
  } catch (const Json::exception&) {
    return {};
  }
}

void record_sources(const fs::path& folder, const fs::path& model, const std::vector<SourceFile>& files) {
  if (folder.empty()) return;
  std::error_code ec;
  fs::create_directories(folder, ec);
  Json j = {{"model", fs::weakly_canonical(model, ec).string()}, {"files", Json::array()}};
  for (const SourceFile& f : files) j["files"].push_back(json_of(f));
  const std::string text = j.dump(1, ' ', false, Json::error_handler_t::replace) + "\n";
  const fs::path record = record_of(folder, model);
  const fs::path fresh = fmt::format("{}.{}.tmp", record.string(), ::getpid());
  {
    std::ofstream out(fresh, std::ios::binary);
    out << digest_of(text) << '\n' << text;
    if (!out.flush()) return (void)fs::remove(fresh, ec);
  }
  fs::rename(fresh, record, ec);
  drop_leftovers(folder);
  drop_oldest(folder);
}

}  // namespace fewbit
