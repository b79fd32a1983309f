#include "src/quant/plan/memory_refusal.h"

#include <fmt/format.h>

#include "src/core/strings.h"

namespace fewbit {

PhaseMemory largest(const std::vector<PhaseMemory>& phases, bool device) {
  PhaseMemory most;
  for (const PhaseMemory& p : phases)
    if ((device ? p.device : p.host) > (device ? most.device : most.host)) most = p;
  return most;
}

// Without a GPU all memory is the host's.
void on_one_machine(std::vector<PhaseMemory>& phases) {
  for (PhaseMemory& p : phases) {
    p.host += p.device;
    p.device = 0;
  }
}

namespace {

std::string stated_anew(const char* flag, int64_t needs) {
  return fmt::format("give it {} {}MiB or more, on a machine that has it", flag, (needs >> 20) + 1);
}

// What to do about a limit of the host: one that was stated is stated anew, others are raised by what is missing; of
// what is free a twentieth is left to others, and so it is of what is added.
std::string remedy(const std::string& limit, int64_t needs, int64_t may) {
  if (limit == "--max-host-memory") return stated_anew("--max-host-memory", needs);
  const int64_t missing = needs - may, more = ((missing + missing / 19) >> 20) + 1;
  if (limit.empty() || limit == "MemAvailable")
    return fmt::format("free {} MiB more, or take a machine that has it", more);
  return fmt::format("raise that limit by {} MiB or more", more);
}

}  // namespace

std::string memory_refusal(const MemoryPlan& m, const PlanOptions& o) {
  const PhaseMemory device = largest(m.phases, true), host = largest(m.phases, false);
  const auto line = [&](const PhaseMemory& p, const char* what, int64_t needs, int64_t may, const std::string& by,
                        const std::string& what_to_do) {
    return fmt::format("this run needs {} of {} memory at its least (phase {} of block {}) and may use {}{}; {}",
                       human_bytes(needs), what, p.phase, p.layer, human_bytes(may), by.empty() ? "" : " (" + by + ")",
                       what_to_do);
  };
  if (o.on_gpu && m.least_device > o.limits.device)
    return line(device, "GPU", m.least_device, o.limits.device, "", stated_anew("--max-gpu-memory", m.least_device));
  if (m.least_host > o.limits.host)
    return line(host, "host", m.least_host, o.limits.host, o.limits.host_name,
                remedy(o.limits.host_name, m.least_host, o.limits.host));
  return "";
}

}  // namespace fewbit
