#pragma once
// Host memory: how much this process may still use, by whichever rule of the system binds first, and how much it has
// resident now. The functions that take text read nothing of the machine.
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace fewbit {

// Bytes that may still be used under one rule, 0 where it is used up.
struct HostLimit {
  int64_t bytes = 0;
  std::string name;  // "MemAvailable", "cgroup limit /sys/fs/cgroup/…", "ulimit -v", "ulimit -d"
};

// Every rule that holds for this process, in the order of the names above; what the system does not tell is left out.
std::vector<HostLimit> host_limits();
// The smallest of them. Where the system tells nothing: INT64_MAX without a name.
HostLimit host_memory_left();

// What `ulimit -v` leaves; nothing where there is no such limit.
std::optional<HostLimit> address_space_left();

// Resident bytes of this process. `file` are pages of mapped files, which the system may take back; `anonymous` are
// allocations, which it may not. Fields that the system does not tell are 0; the kernel counts pages in batches, so
// that each may be off by some hundred KiB.
struct ResidentMemory {
  int64_t now = 0, peak = 0;
  int64_t anonymous = 0, file = 0;  // of `now`
};
ResidentMemory resident_memory();

// A field of /proc/meminfo or /proc/self/status, "MemAvailable:   16310240 kB", in bytes.
std::optional<int64_t> kib_field(std::string_view text, std::string_view field);
// /proc/self/statm: the size of the address space and of its data and stack, in bytes.
struct MappedMemory {
  int64_t all = 0, data = 0;
};
std::optional<MappedMemory> parse_statm(std::string_view text, int64_t page_bytes);

// The folders that hold this process's memory limits, its own group first and then the groups around it: from
// /proc/self/cgroup and /proc/self/mountinfo, for version 2 of control groups and version 1's memory controller.
std::vector<std::filesystem::path> cgroup_folders(std::string_view cgroup, std::string_view mountinfo);
// What the limit of the group in `folder` leaves: memory.max, memory.high and memory.current of version 2,
// memory.limit_in_bytes and memory.usage_in_bytes of version 1, cached files counting as free. Empty without a limit.
std::optional<HostLimit> cgroup_limit(const std::filesystem::path& folder);

}  // namespace fewbit
