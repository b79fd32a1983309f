#include "src/quant/plan/disk_plan.h"

#include <fmt/format.h>
#include <sys/stat.h>

#include <algorithm>
#include <limits>
#include <map>

#include "src/core/strings.h"
#include "src/quant/plan/plan.h"

namespace fewbit {
namespace {

namespace fs = std::filesystem;

// The nearest folder around `path` that exists.
fs::path existing(const fs::path& path) {
  std::error_code ec;
  fs::path p = fs::absolute(path, ec).lexically_normal();
  while (!fs::is_directory(p, ec) && p != p.parent_path()) p = p.parent_path();
  return p;
}

uint64_t file_system_of(const fs::path& folder) {
  struct stat st {};
  return ::stat(folder.c_str(), &st) == 0 ? st.st_dev : 0;
}

// For a user without privileges; what the system does not tell does not bind.
int64_t free_bytes(const fs::path& folder) {
  std::error_code ec;
  const fs::space_info space = fs::space(folder, ec);
  return ec ? std::numeric_limits<int64_t>::max() : static_cast<int64_t>(space.available);
}

// What the files in a folder and below it take; a file that has its length from the start may be half empty.
int64_t bytes_below(const fs::path& folder) {
  int64_t bytes = 0;
  std::error_code ec;
  for (fs::recursive_directory_iterator it(folder, ec), end; !ec && it != end; it.increment(ec)) {
    struct stat st {};
    if (::lstat(it->path().c_str(), &st) == 0 && S_ISREG(st.st_mode))
      bytes += std::min<int64_t>(st.st_size, int64_t{st.st_blocks} * 512);
  }
  return bytes;
}

}  // namespace

bool blocks_lie_in_out(const QuantPlan& plan, bool routers) {
  return !plan.format->gguf && !plan.format->stacked && (plan.transforms.empty() || !routers);
}

int64_t peak_out_bytes(const QuantPlan& plan, const DiskJob& job) {
  // Headers of safetensors, records of the journal, report and card grow with OUT, and have a floor.
  const int64_t whole = plan.out_bytes + job.companions + plan.out_bytes / 256 + (int64_t{1} << 20);
  if (blocks_lie_in_out(plan, job.routers)) return whole;
  std::map<int64_t, int64_t> of_block;
  int64_t packed = 0, largest = 0;
  for (const PlannedLinear& p : plan.linears)
    if (!p.keep) {
      packed += p.out_bytes;
      largest = std::max(largest, of_block[p.linear.layer] += p.out_bytes);
    }
  if (plan.format->gguf) return whole + packed;
  return whole + std::min(packed, job.shard_bytes + largest);
}

DiskPlan plan_disk(const QuantPlan& plan, const DiskJob& job) {
  DiskPlan disk;
  disk.blocks_in_out = blocks_lie_in_out(plan, job.routers);
  const auto need = [&](const fs::path& where, const char* what, int64_t bytes) {
    if (bytes <= 0) return;
    const fs::path folder = existing(where);
    for (DiskNeed& n : disk.needs)
      if (file_system_of(n.folder) == file_system_of(folder)) {
        n.what += fmt::format(" and {}", what);
        n.bytes += bytes;
        return;
      }
    disk.needs.push_back({folder, what, bytes, free_bytes(folder)});
  };
  need(job.out, "OUT", std::max<int64_t>(0, peak_out_bytes(plan, job) - bytes_below(job.partial)));
  need(job.scratch.empty() ? job.out : job.scratch, "scratch", plan.memory.scratch);
  for (const DiskNeed& n : disk.needs)
    if (n.bytes > n.free && disk.refusal.empty())
      disk.refusal = fmt::format(
          "this run needs {} of disk at its peak for {} and {} are free at {}; make room there, or choose {}",
          human_bytes(n.bytes), n.what, human_bytes(n.free), n.folder.string(),
          n.what == "scratch" ? "another --scratch"
          : n.what == "OUT"   ? "an OUT on another file system"
                              : "an OUT or a --scratch on another file system");
  return disk;
}

std::string disk_lines(const DiskPlan& disk) {
  std::string s;
  for (const DiskNeed& n : disk.needs)
    s += fmt::format("disk at its peak: {} for {}{}, of {} free at {}\n", human_bytes(n.bytes), n.what,
                     !starts_with(n.what, "OUT") ? ""
                     : disk.blocks_in_out        ? ", where blocks are sealed in place"
                                                 : " and blocks that wait for their place in it",
                     human_bytes(n.free), n.folder.string());
  return disk.refusal.empty() ? s : s + "refused: " + disk.refusal + "\n";
}

}  // namespace fewbit
