// Host memory: what the system's files say, by fixtures, and what binds a process, by a child with limits of its own.
#include "src/core/host_memory.h"

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <fstream>

#include "tests/support/support.h"

namespace fewbit::test {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kMiB = int64_t{1} << 20;

void write(const fs::path& path, const std::string& text) {
  fs::create_directories(path.parent_path());
  std::ofstream(path) << text;
}

TEST(HostMemory, FieldsOfMeminfoAndStatus) {
  const std::string meminfo = "MemTotal:       24689508 kB\nMemFree:         1 kB\nMemAvailable:   21000000 kB\n";
  EXPECT_EQ(kib_field(meminfo, "MemAvailable"), 21000000ll * 1024);
  EXPECT_EQ(kib_field(meminfo, "Mem"), std::nullopt);  // a whole name, not its beginning
  EXPECT_EQ(kib_field("HugePages_Total:       0\n", "HugePages_Total"), std::nullopt);  // no bytes
  EXPECT_EQ(kib_field("VmRSS:\t    1736 kB\nRssAnon:\t 112 kB", "RssAnon"), 112 * 1024);
  EXPECT_EQ(kib_field("VmRSS:\t many kB", "VmRSS"), std::nullopt);
  EXPECT_EQ(kib_field("", "VmRSS"), std::nullopt);
}

TEST(HostMemory, Statm) {
  const auto m = parse_statm("765 427 399 5 0 123 0\n", 4096);
  ASSERT_TRUE(m);
  EXPECT_EQ(m->all, 765 * 4096);
  EXPECT_EQ(m->data, 123 * 4096);
  EXPECT_FALSE(parse_statm("765 427", 4096));
  EXPECT_FALSE(parse_statm("", 4096));
}

using Folders = std::vector<fs::path>;

TEST(HostMemory, GroupsOfVersion2) {
  const std::string mounts =
      "24 1 0:22 / /proc rw - proc proc rw\n"
      "30 23 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n";
  EXPECT_EQ(cgroup_folders("0::/user.slice/job.scope\n", mounts),
            (Folders{"/sys/fs/cgroup/user.slice/job.scope", "/sys/fs/cgroup/user.slice", "/sys/fs/cgroup"}));
  EXPECT_EQ(cgroup_folders("0::/\n", mounts), (Folders{"/sys/fs/cgroup"}));
  EXPECT_EQ(cgroup_folders("0::/../other\n", mounts), (Folders{"/sys/fs/cgroup"}));  // outside of this view
  EXPECT_EQ(cgroup_folders("0::/job\n", ""), Folders{});
}

TEST(HostMemory, GroupsOfVersion1) {
  const std::string mounts =
      "35 31 0:32 /docker/4f /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
      "36 31 0:33 /docker/4f /sys/fs/cgroup/devices rw - cgroup cgroup rw,devices\n"
      "41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw\n";
  const std::string groups = "8:pids:/docker/4f\n4:memory,hugetlb:/docker/4f/step_0\n1:name=systemd:/\n0::/\n";
  // The mount shows the container's group at its point; version 2 is there too, for what version 1 does not control.
  EXPECT_EQ(cgroup_folders(groups, mounts),
            (Folders{"/sys/fs/cgroup/memory/step_0", "/sys/fs/cgroup/memory", "/sys/fs/cgroup/unified"}));
  EXPECT_EQ(cgroup_folders("4:memory:/elsewhere\n", mounts), (Folders{"/sys/fs/cgroup/memory"}));
  EXPECT_EQ(cgroup_folders("no colons\n\n5:half\n", mounts), Folders{});
}

TEST(HostMemory, LimitOfAGroupOfVersion2) {
  const TempDir dir;
  EXPECT_FALSE(cgroup_limit(dir.path()));  // the root group has no such files
  write(dir / "memory.current", "700\n");
  write(dir / "memory.max", "max\n");
  write(dir / "memory.high", "max\n");
  EXPECT_FALSE(cgroup_limit(dir.path()));
  write(dir / "memory.max", "1000\n");
  auto limit = cgroup_limit(dir.path());
  ASSERT_TRUE(limit);
  EXPECT_EQ(limit->bytes, 300);
  EXPECT_EQ(limit->name, "cgroup limit " + dir.path().string());
  write(dir / "memory.stat", "anon 500\nfile 200\ninactive_file 120\nactive_file 30\n");
  EXPECT_EQ(cgroup_limit(dir.path())->bytes, 450);  // cached files can be given up
  write(dir / "memory.high", "800\n");
  EXPECT_EQ(cgroup_limit(dir.path())->bytes, 250);
  write(dir / "memory.current", "5000\n");
  EXPECT_EQ(cgroup_limit(dir.path())->bytes, 0);
}

TEST(HostMemory, LimitOfAGroupOfVersion1) {
  const TempDir dir;
  write(dir / "memory.usage_in_bytes", "700\n");
  write(dir / "memory.limit_in_bytes", "9223372036854771712\n");  // what version 1 writes for "none"
  EXPECT_FALSE(cgroup_limit(dir.path()));
  write(dir / "memory.limit_in_bytes", "1000\n");
  write(dir / "memory.stat", "active_file 1\ntotal_active_file 40\ntotal_inactive_file 60\n");
  ASSERT_TRUE(cgroup_limit(dir.path()));
  EXPECT_EQ(cgroup_limit(dir.path())->bytes, 400);
}

TEST(HostMemory, ThisProcess) {
  const std::vector<HostLimit> limits = host_limits();
  ASSERT_FALSE(limits.empty());
  EXPECT_EQ(limits[0].name, "MemAvailable");
  const HostLimit left = host_memory_left();
  for (const HostLimit& l : limits) EXPECT_FALSE(l.name.empty());
  EXPECT_TRUE(std::any_of(limits.begin(), limits.end(), [&](const HostLimit& l) { return l.name == left.name; }));
}

// What a child process finds that has `resource` limited to `bytes` above what it maps.
HostLimit left_under(int resource, int64_t bytes) {
  int pipe_ends[2];
  EXPECT_EQ(::pipe(pipe_ends), 0);
  const pid_t child = ::fork();
  if (child == 0) {
    std::string statm;
    std::getline(std::ifstream("/proc/self/statm"), statm);
    const auto mapped = parse_statm(statm, ::sysconf(_SC_PAGESIZE));
    const auto limit = static_cast<rlim_t>((resource == RLIMIT_AS ? mapped->all : mapped->data) + bytes);
    const rlimit both{limit, limit};
    if (::setrlimit(resource, &both) != 0) ::_exit(1);
    const HostLimit found = host_memory_left();
    const std::string line = std::to_string(found.bytes) + " " + found.name;
    ::_exit(::write(pipe_ends[1], line.data(), line.size()) == static_cast<ssize_t>(line.size()) ? 0 : 1);
  }
  ::close(pipe_ends[1]);
  std::string line(256, '\0');
  line.resize(static_cast<size_t>(std::max<ssize_t>(0, ::read(pipe_ends[0], line.data(), line.size()))));
  ::close(pipe_ends[0]);
  int status = -1;
  ::waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
  const size_t space = line.find(' ');
  return space == std::string::npos ? HostLimit{} : HostLimit{std::stoll(line), line.substr(space + 1)};
}

TEST(HostMemory, AChildUnderLimits) {
  for (const auto& [resource, name] : {std::pair{RLIMIT_AS, "ulimit -v"}, std::pair{RLIMIT_DATA, "ulimit -d"}}) {
    const HostLimit left = left_under(resource, 64 * kMiB);
    EXPECT_EQ(left.name, name);
    EXPECT_LE(left.bytes, 65 * kMiB);  // the child may have given some pages back
    EXPECT_GE(left.bytes, 60 * kMiB);  // reading the limits takes some itself
  }
}

TEST(HostMemory, ResidentGrowsWithWhatIsTouched) {
  const ResidentMemory before = resident_memory();
  EXPECT_GT(before.now, 0);
  EXPECT_GT(before.file, 0);  // the program itself is a mapped file
  const size_t bytes = 64 * kMiB;
  void* p = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(p, MAP_FAILED);
  std::memset(p, 1, bytes);
  const ResidentMemory touched = resident_memory();
  ::munmap(p, bytes);
  const ResidentMemory after = resident_memory();
  EXPECT_GE(touched.anonymous - before.anonymous, 60 * kMiB);
  EXPECT_GE(touched.peak, before.now + 60 * kMiB);
  EXPECT_LE(after.anonymous, touched.anonymous - 60 * kMiB);
  EXPECT_GE(after.peak, before.now + 60 * kMiB);  // the peak stays
}

}  // namespace
}  // namespace fewbit::test
