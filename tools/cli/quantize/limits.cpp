#include "tools/cli/quantize/limits.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>

#include "kernels/cpu/arithmetic.h"
#include "src/core/host_memory.h"
#include "src/core/strings.h"
#include "src/quant/journal/run_folder.h"
#include "src/quant/output/companions.h"
#include "src/run/moe.h"
#include "tools/cli/ranks.h"

namespace fewbit::cli {
namespace {

// Left to the rest of the machine where no limit was stated: 5 %, for what the kernel and others will ask for
// meanwhile, and not less than a quarter of a GiB.
int64_t without_reserve(int64_t free) { return std::max<int64_t>(0, free - std::max(free / 20, int64_t{256} << 20)); }

constexpr int64_t kUnlimited = std::numeric_limits<int64_t>::max();

}  // namespace

void add_limit_arguments(CLI::App& app, LimitArgs& a) {
  constexpr const char* kGroup = "Memory (never changes the bytes of OUT)";
  app.add_option(
         "--max-gpu-memory,--gpu-memory", a.max_gpu,
         "GPU memory to stay within: 24GiB … (default: what is free, less a reserve); with `plan` also for a GPU "
         "that is not here")
      ->group(kGroup);
  app.add_option("--max-host-memory,--host-memory", a.max_host,
                 "Host memory to stay within: 8GiB … (default: what is free, less a reserve)")
      ->group(kGroup);
  app.add_option("--scratch", a.scratch,
                 "Folder for the calibration's states that fit no memory (default: in OUT.partial)")
      ->group(kGroup);
}

bool plans_for_gpu(const LimitArgs& a, const Exec& ex) { return ex.on_cuda() || !a.max_gpu.empty(); }

MemoryLimits memory_limits(const LimitArgs& a, const Exec& ex) {
  MemoryLimits limits;
  if (!ex.on_cuda()) load_cpu_products();
  if (!a.max_gpu.empty())
    limits.device = bytes_from(a.max_gpu, "--max-gpu-memory");
  else if (ex.on_cuda())
    limits.device = without_reserve(ex.free_bytes());
  if (!a.max_host.empty()) {
    limits.host = bytes_from(a.max_host, "--max-host-memory");
    limits.host_name = "--max-host-memory";
  } else if (const HostLimit left = host_memory_left(); left.bytes < kUnlimited) {
    // Ranks of one machine share what is left there.
    limits.host = without_reserve(left.bytes) / the_ranks().node_size() + resident_memory().anonymous;
    limits.host_name = left.name;
  }
  if (a.scratch.empty()) return limits;
  limits.scratch = a.scratch;
  if (!std::filesystem::is_directory(limits.scratch) || ::access(a.scratch.c_str(), W_OK) != 0)
    fail(ErrorKind::usage,
         fmt::format("--scratch {}: expected a folder that can be written, found none; make it first", a.scratch));
  return limits;
}

DiskPlan disk_of(const QuantPlan& plan, const QuantJob& job, const LimitArgs& a, const Checkpoint& c) {
  return plan_disk(plan, {.out = place_of(job.out),
                          .partial = job.resume ? partial_of(job.out) : std::filesystem::path(),
                          .scratch = a.scratch,
                          .shard_bytes = job.shard_bytes,
                          .companions = companion_bytes(c.dir),
                          .routers = has_moe(c.spec)});
}

std::string memory_table(const MemoryPlan& m, const MemoryLimits& limits, bool on_gpu) {
  std::string s =
      fmt::format("{:<10}  {:>6}  {:>12}  {:>12}\n", "phase", "block", on_gpu ? "GPU memory" : "-", "host memory");
  for (const PhaseMemory& p : m.phases)
    s += fmt::format("{:<10}  {:>6}  {:>12}  {:>12}\n", p.phase, p.layer, on_gpu ? human_bytes(p.device) : "-",
                     human_bytes(p.host));
  const auto of = [](int64_t limit) { return limit == kUnlimited ? std::string() : " of " + human_bytes(limit); };
  s += "memory at its peak: ";
  if (on_gpu) s += fmt::format("GPU {}{}, ", human_bytes(m.device), of(limits.device));
  s += fmt::format("host {}{}; states of the calibration {}", human_bytes(m.host), of(limits.host),
                   human_bytes(m.states));
  if (m.scratch > 0) s += fmt::format(", of which {} on disk", human_bytes(m.scratch));
  if (m.mapped > 0)
    s += fmt::format("; up to {} of MODEL's files besides, which no limit counts", human_bytes(m.mapped));
  s += fmt::format("; the smallest limits that would do: ");
  if (on_gpu) s += fmt::format("--max-gpu-memory {}MiB ", (m.smallest_device >> 20) + 1);
  return s + fmt::format("--max-host-memory {}MiB\n", (m.smallest_host >> 20) + 1);
}

}  // namespace fewbit::cli
