#include "src/core/host_memory.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <iterator>
#include <limits>

#include "src/core/file_io.h"
#include "src/core/strings.h"

namespace fewbit {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kUnlimited = std::numeric_limits<int64_t>::max();

std::optional<int64_t> number(std::string_view s) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(s.data(), s.data() + s.size(), value);
  return error == std::errc() && end == s.data() + s.size() ? std::optional(value) : std::nullopt;
}

// The first number of a file; version 2 writes "max" where there is no limit.
std::optional<int64_t> number_in(const fs::path& path) {
  const std::vector<std::string> found = words(text_or_empty(path));
  return found.empty() ? std::nullopt : number(found.front());
}

// A line "NAME VALUE" of memory.stat; 0 where it is absent.
int64_t stat_line(const std::string& text, std::string_view name) {
  for (const std::string& line : split(text, '\n')) {
    const std::vector<std::string> pair = words(line);
    if (pair.size() == 2 && pair[0] == name) return number(pair[1]).value_or(0);
  }
  return 0;
}

// Where a hierarchy of control groups is mounted, and which of its groups lies at the mount point.
struct Mount {
  fs::path point, root;
};

// mountinfo: id, parent, device, root, mount point, options, optional fields, "-", type, source, super options.
std::optional<Mount> memory_mount(std::string_view mountinfo, bool version2) {
  for (const std::string& line : split(mountinfo, '\n')) {
    const std::vector<std::string> fields = words(line);
    const auto dash = std::find(fields.begin(), fields.end(), "-");
    if (fields.size() < 6 || fields.end() - dash < 4) continue;
    const std::vector<std::string> options = split(dash[3], ',');
    const bool memory = std::find(options.begin(), options.end(), "memory") != options.end();
    if (version2 ? dash[1] == "cgroup2" : dash[1] == "cgroup" && memory) return Mount{fields[4], fields[3]};
  }
  return std::nullopt;
}

// A group that lies outside of what is mounted (a container's own view) is judged by the mount point alone.
void add_folders(const Mount& mount, const fs::path& group, std::vector<fs::path>& out) {
  const fs::path inside = group.lexically_relative(mount.root);
  fs::path folder = mount.point;
  std::vector<fs::path> outermost_first = {folder};
  if (!inside.empty() && *inside.begin() != "..")
    for (const fs::path& part : inside)
      if (part != ".") outermost_first.push_back(folder /= part);
  out.insert(out.end(), outermost_first.rbegin(), outermost_first.rend());
}

void add_rlimit(int resource, int64_t mapped, const char* name, std::vector<HostLimit>& out) {
  rlimit limit{};
  if (::getrlimit(resource, &limit) != 0 || limit.rlim_cur >= static_cast<rlim_t>(kUnlimited)) return;
  out.push_back({std::max<int64_t>(0, static_cast<int64_t>(limit.rlim_cur) - mapped), name});
}

}  // namespace

std::optional<int64_t> kib_field(std::string_view text, std::string_view field) {
  for (const std::string& line : split(text, '\n')) {
    const std::vector<std::string> parts = words(line);
    if (parts.size() != 3 || parts[0] != std::string(field) + ":" || parts[2] != "kB") continue;
    const auto kib = number(parts[1]);
    return kib ? std::optional(*kib * 1024) : std::nullopt;
  }
  return std::nullopt;
}

std::optional<MappedMemory> parse_statm(std::string_view text, int64_t page_bytes) {
  const std::vector<std::string> fields = words(text);
  if (fields.size() < 6) return std::nullopt;
  const auto all = number(fields[0]), data = number(fields[5]);
  if (!all || !data) return std::nullopt;
  return MappedMemory{*all * page_bytes, *data * page_bytes};
}

std::vector<fs::path> cgroup_folders(std::string_view cgroup, std::string_view mountinfo) {
  std::vector<fs::path> out;
  for (const std::string& line : split(cgroup, '\n')) {  // "0::/group" of version 2, "4:memory:/group" of version 1
    const size_t first = line.find(':'), second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::vector<std::string> controllers = split(line.substr(first + 1, second - first - 1), ',');
    const bool version2 = controllers == std::vector<std::string>{""};
    if (!version2 && std::find(controllers.begin(), controllers.end(), "memory") == controllers.end()) continue;
    if (const auto mount = memory_mount(mountinfo, version2)) add_folders(*mount, line.substr(second + 1), out);
  }
  return out;
}

std::optional<HostLimit> cgroup_limit(const fs::path& folder) {
  std::error_code ignored;
  const bool version2 = fs::exists(folder / "memory.current", ignored);
  int64_t limit = kUnlimited;
  // Above memory.high a group is slowed until nothing moves, which is no better than being stopped at memory.max.
  for (const char* file : {"memory.max", "memory.high", "memory.limit_in_bytes"})
    limit = std::min(limit, number_in(folder / file).value_or(kUnlimited));
  if (limit >= kUnlimited / 2) return std::nullopt;  // version 1 writes a huge number where there is no limit
  const auto used = number_in(folder / (version2 ? "memory.current" : "memory.usage_in_bytes"));
  if (!used) return std::nullopt;
  // The cache of files is counted as used, but given up before anything is refused: MemAvailable counts it as free too.
  const std::string stat = text_or_empty(folder / "memory.stat"), prefix = version2 ? "" : "total_";
  const int64_t cache = stat_line(stat, prefix + "active_file") + stat_line(stat, prefix + "inactive_file");
  const int64_t left = limit - std::max<int64_t>(0, *used - cache);
  return HostLimit{std::max<int64_t>(0, left), "cgroup limit " + folder.string()};
}

std::vector<HostLimit> host_limits() {
  std::vector<HostLimit> out;
  if (const auto free = kib_field(text_or_empty("/proc/meminfo"), "MemAvailable"))
    out.push_back({*free, "MemAvailable"});
  for (const fs::path& folder :
       cgroup_folders(text_or_empty("/proc/self/cgroup"), text_or_empty("/proc/self/mountinfo")))
    if (const auto limit = cgroup_limit(folder)) out.push_back(*limit);
  const auto mapped = parse_statm(text_or_empty("/proc/self/statm"), ::sysconf(_SC_PAGESIZE)).value_or(MappedMemory{});
  add_rlimit(RLIMIT_AS, mapped.all, "ulimit -v", out);
  add_rlimit(RLIMIT_DATA, mapped.data, "ulimit -d", out);
  return out;
}

std::optional<HostLimit> address_space_left() {
  std::vector<HostLimit> out;
  const auto mapped = parse_statm(text_or_empty("/proc/self/statm"), ::sysconf(_SC_PAGESIZE)).value_or(MappedMemory{});
  add_rlimit(RLIMIT_AS, mapped.all, "ulimit -v", out);
  return out.empty() ? std::nullopt : std::optional(out.front());
}

HostLimit host_memory_left() {
  HostLimit smallest{kUnlimited, ""};
  for (const HostLimit& limit : host_limits())
    if (limit.bytes < smallest.bytes) smallest = limit;
  return smallest;
}

ResidentMemory resident_memory() {
  const std::string status = text_or_empty("/proc/self/status");
  const auto field = [&](std::string_view name) { return kib_field(status, name).value_or(0); };
  return {field("VmRSS"), field("VmHWM"), field("RssAnon"), field("RssFile")};
}

}  // namespace fewbit
