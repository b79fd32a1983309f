#include "src/quant/journal/run_folder.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <csignal>
#include <cstring>
#include <ctime>
#include <nlohmann/json.hpp>

#include "formats/guarded_json.h"
#include "src/core/error.h"
#include "src/core/strings.h"

namespace fewbit {
namespace {

namespace fs = std::filesystem;

constexpr const char* kOwner = "owner";
constexpr int kFormat = 2;              // of the folder: mark, journal, block files
constexpr int64_t kMaxMark = 64 << 10;  // larger is not ours
constexpr int kTries = 100;

std::string mark() { return fmt::format("{}\n", nlohmann::json{{"fewbit run", kFormat}}.dump()); }

std::string now() {
  const std::time_t t = std::time(nullptr);
  std::tm utc{};
  char text[32];
  return {text, std::strftime(text, sizeof text, "%FT%TZ", ::gmtime_r(&t, &utc))};
}

std::string this_host() {
  char host[256] = {};
  ::gethostname(host, sizeof host - 1);
  return host;
}

// The second line: of whoever holds the lock, or held it last.
std::string holder() {
  const auto lenient = nlohmann::json::error_handler_t::replace;
  return nlohmann::json{{"host", this_host()}, {"pid", ::getpid()}, {"started", now()}}.dump(-1, ' ', false, lenient) +
         "\n";
}

void write_holder(File& owner) {
  owner.cut(static_cast<int64_t>(mark().size()));
  owner.append_whole(holder());
}

// Nothing where the line is not there: a run that is just writing it has none yet.
std::optional<RunHolder> holder_from(const std::string& text) {
  const auto j = json_or_discarded(text.substr(std::min(text.size(), text.find('\n') + 1)), kRecordJson);
  if (!j.is_object() || !j.contains("host") || !j["host"].is_string() || !j.contains("pid") ||
      !j["pid"].is_number_integer() || !j.contains("started") || !j["started"].is_string())
    return std::nullopt;
  return RunHolder{
      .host = j["host"].get<std::string>(), .started = j["started"].get<std::string>(), .pid = j["pid"].get<int64_t>()};
}

// "HOST, process 17, since TIME"; a run that is just writing the line has none yet.
std::string holder_of(const std::string& text) {
  const std::optional<RunHolder> h = holder_from(text);
  return h ? fmt::format("{}, process {}, since {}", h->host, h->pid, h->started) : "another process";
}

// Whether the process has the file open; nothing where its files cannot be seen. Only an owner has this file open.
std::optional<bool> has_open(int64_t pid, const fs::path& file) {
  struct stat wanted {
  }, found{};
  if (::stat(file.c_str(), &wanted) != 0) return false;
  std::error_code ec;
  const fs::path proc = fmt::format("/proc/{}", pid);
  if (fs::exists("/proc/self", ec) && !fs::exists(proc, ec)) return false;
  fs::directory_iterator it(proc / "fd", ec);
  if (ec) return std::nullopt;
  for (const fs::directory_iterator end; !ec && it != end; it.increment(ec))
    if (::stat(it->path().c_str(), &found) == 0 && found.st_dev == wanted.st_dev && found.st_ino == wanted.st_ino)
      return true;
  return false;
}

// The version in the mark; nothing where it is no mark.
std::optional<int64_t> format_of(const std::string& text) {
  const auto j = json_or_discarded(text.substr(0, text.find('\n')), kRecordJson);
  if (!j.is_object() || !j.contains("fewbit run") || !j["fewbit run"].is_number_integer()) return std::nullopt;
  return j["fewbit run"].get<int64_t>();
}

bool lock(const File& owner, const fs::path& dir) {
  if (::flock(owner.fd(), LOCK_EX | LOCK_NB) == 0) return true;
  if (errno == EWOULDBLOCK) return false;
  fail(ErrorKind::io, fmt::format("{}: cannot be locked: {}; choose an OUT on a file system that has locks",
                                  (dir / kOwner).string(), std::strerror(errno)));
}

// Whether the file is still the one that has this name: the folder may have gone, or another come in its place.
bool still_at(const File& owner, const fs::path& dir) {
  struct stat mine {
  }, named{};
  return ::fstat(owner.fd(), &mine) == 0 && ::stat((dir / kOwner).c_str(), &named) == 0 &&
         mine.st_dev == named.st_dev && mine.st_ino == named.st_ino;
}

[[noreturn]] void refuse_foreign(const fs::path& dir, const std::string& why) {
  fail(ErrorKind::usage,
       fmt::format("{}: {}; nothing in it was touched: move it away, or choose another OUT", dir.string(), why));
}

// The mark is gone last, so that what a crash leaves of a folder is still known as a run's.
void clear(const fs::path& dir) {
  std::error_code ignored;
  for (fs::directory_iterator it(dir, ignored), end; !ignored && it != end; it.increment(ignored))
    if (std::error_code failed; it->path().filename() != kOwner) fs::remove_all(it->path(), failed);
}

bool remove_cleared(const fs::path& dir) {
  std::error_code ec;
  for (fs::directory_iterator it(dir, ec), end; !ec && it != end; it.increment(ec))
    if (it->path().filename() != kOwner) return false;
  fs::remove(dir / kOwner, ec);
  return fs::remove(dir, ec);
}

// Names beside OUT.partial, of folders that come or go.
std::string hidden_prefix(const fs::path& dir) { return fmt::format(".{}-", dir.filename().string()); }

fs::path hidden_name(const fs::path& dir, int n) {
  return dir.parent_path() / fmt::format("{}{}-{}", hidden_prefix(dir), ::getpid(), n);
}

// What may be an owner's file: no link is followed, and a FIFO does not hold us up.
std::optional<File> owner_in(const fs::path& dir) {
  File owner = File::with_flags(dir / kOwner, O_RDWR | O_APPEND | O_NOFOLLOW | O_NONBLOCK);
  struct stat st {};
  if (!owner.open() || ::fstat(owner.fd(), &st) != 0 || !S_ISREG(st.st_mode) || st.st_size > kMaxMark)
    return std::nullopt;
  return owner;
}

// Whether the process that made a hidden folder, whose number is in the name, is gone from this machine.
bool maker_is_gone(const std::string& name, const std::string& prefix) {
  const char *begin = name.data() + prefix.size(), *end = name.data() + name.size();
  pid_t pid = 0;
  const auto [next, error] = std::from_chars(begin, end, pid);
  return error == std::errc() && pid > 0 && next != end && *next == '-' && ::kill(pid, 0) != 0 && errno == ESRCH;
}

}  // namespace

fs::path place_of(const fs::path& out) {
  const fs::path clean = out.lexically_normal();
  const fs::path named = clean.has_filename() ? clean : clean.parent_path();
  std::error_code ec;
  return fs::is_symlink(named, ec) ? fs::weakly_canonical(named) : named;
}

fs::path partial_of(const fs::path& out) { return fmt::format("{}.partial", place_of(out).string()); }

std::optional<RunHolder> holder_of_run(const fs::path& dir) {
  const File owner = File::with_flags(dir / kOwner, O_RDONLY | O_NONBLOCK | O_NOFOLLOW);
  struct stat st {};
  if (!owner.open() || ::fstat(owner.fd(), &st) != 0 || !S_ISREG(st.st_mode) || st.st_size > kMaxMark)
    return std::nullopt;
  const std::string text = owner.read_all();
  if (!format_of(text)) return std::nullopt;
  RunHolder h = holder_from(text).value_or(RunHolder{});
  if (h.host == this_host()) h.holds = h.pid == ::getpid() ? std::optional(true) : has_open(h.pid, dir / kOwner);
  return h;
}

std::optional<RunFolder> RunFolder::make(const fs::path& dir) {
  fs::path hidden;
  for (int n = 0;; ++n) {
    hidden = hidden_name(dir, n);
    if (::mkdir(hidden.c_str(), 0777) == 0) break;
    if (errno != EEXIST || n == kTries)
      fail(ErrorKind::io, fmt::format("{}: cannot create: {}", dir.string(), std::strerror(errno)));
  }
  try {
    File owner = File::with_flags(hidden / kOwner, O_RDWR | O_APPEND | O_CREAT | O_EXCL);
    if (!owner.open()) owner.refuse("cannot create");
    lock(owner, hidden);  // before the mark: whoever finds a mark without a lock knows that its run is dead
    owner.append_whole(mark() + holder());
    owner.sync();
    sync_folder(hidden);
    if (rename_to_new(hidden, dir)) return RunFolder(dir, std::move(owner), false);
  } catch (const Error&) {
    clear(hidden);
    remove_cleared(hidden);
    throw;
  }
  remove_cleared(hidden);
  return std::nullopt;
}

std::optional<RunFolder> RunFolder::take_over(const fs::path& dir) {
  std::error_code ec;
  if (!fs::exists(fs::symlink_status(dir, ec))) return std::nullopt;
  std::optional<File> owner = owner_in(dir);
  const std::string text = owner ? owner->read_all() : "";
  const std::optional<int64_t> format = format_of(text);
  if (!fs::exists(fs::symlink_status(dir, ec))) return std::nullopt;  // went away since
  if (!format && ::access((dir / kOwner).c_str(), R_OK | W_OK) != 0 && errno == EACCES)
    refuse_foreign(dir, "belongs to another user");
  if (!format) refuse_foreign(dir, "is there and is no unfinished run of fewbit (no owner's mark)");
  if (format != kFormat)
    refuse_foreign(dir,
                   fmt::format("belongs to another version of fewbit (format {}, this one has {})", *format, kFormat));
  const bool mine = lock(*owner, dir);
  if (!still_at(*owner, dir)) return std::nullopt;
  if (!mine)
    fail(ErrorKind::usage, fmt::format("{} is in use by another run ({}); nothing was touched: wait for it, or choose "
                                       "another OUT",
                                       dir.string(), holder_of(text)));
  write_holder(*owner);
  return RunFolder(dir, *std::move(owner), true);
}

// A run that was killed before its mark was written left an empty folder, or an empty owner's file in it; of those,
// nothing that holds anything is removed.
void RunFolder::remove_leftovers(const fs::path& dir) {
  std::error_code ec;
  const fs::path parent = dir.has_parent_path() ? dir.parent_path() : fs::path(".");
  for (fs::directory_iterator it(parent, ec), end; !ec && it != end; it.increment(ec)) {
    const std::string name = it->path().filename().string();
    if (!starts_with(name, hidden_prefix(dir))) continue;
    const std::optional<File> owner = owner_in(it->path());
    const std::string text = owner ? owner->read_all() : "";
    const bool marked = format_of(text) == kFormat;
    if (!marked && !(text.empty() && maker_is_gone(name, hidden_prefix(dir)))) continue;
    if (!owner) ::rmdir(it->path().c_str());
    if (!owner || !lock(*owner, it->path()) || !still_at(*owner, it->path())) continue;
    if (marked) clear(it->path());
    remove_cleared(it->path());
  }
}

RunFolder RunFolder::claim(const fs::path& dir) {
  remove_leftovers(dir);
  for (int n = 0; n < kTries; ++n) {  // between a look and a step, another run may come or go
    if (auto found = take_over(dir)) return *std::move(found);
    if (auto made = make(dir)) return *std::move(made);
  }
  fail(ErrorKind::io, fmt::format("{}: other runs come and go here; start this one alone", dir.string()));
}

RunFolder::~RunFolder() {
  if (owner_.open() && !kept_) remove();
}

void RunFolder::wipe() {
  clear(dir_);
  std::error_code ec;
  for (fs::directory_iterator it(dir_, ec), end; !ec && it != end; it.increment(ec))
    if (it->path().filename() != kOwner)
      fail(ErrorKind::io, fmt::format("{}: cannot be removed; remove it by hand", it->path().string()));
}

void RunFolder::remove() {
  fs::path gone = dir_;
  try {  // never in the place of a folder that another start is just making, not even of an empty one
    for (int n = 0; n < kTries && gone == dir_; ++n)
      if (const fs::path hidden = hidden_name(dir_, n); rename_to_new(dir_, hidden)) gone = hidden;
  } catch (const Error&) {  // cleared where it lies
  }
  clear(gone);
  remove_cleared(gone);
  [[maybe_unused]] const File released = std::move(owner_);
}

}  // namespace fewbit
