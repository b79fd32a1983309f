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

std::string memory_refusal(const MemoryPlan& m, const PlanOptions& o) {
  const PhaseMemory device = largest(m.phases, true), host = largest(m.phases, false);
  const auto line = [&](const PhaseMemory& p, const char* what, const char* flag, int64_t needs, int64_t may,
                        const std::string& by) {
    return fmt::format(
        "this run needs {} of {} memory at its least (phase {} of block {}) and may use {}{}; give it {} {}MiB "
        "or more, on a machine that has it",
        human_bytes(needs), what, p.phase, p.layer, human_bytes(may), by.empty() ? "" : " (" + by + ")", flag,
        (needs >> 20) + 1);
  };
  if (o.on_gpu && m.least_device > o.limits.device)
    return line(device, "GPU", "--max-gpu-memory", m.least_device, o.limits.device, "");
  if (m.least_host > o.limits.host)
    return line(host, "host", "--max-host-memory", m.least_host, o.limits.host, o.limits.host_name);
  return "";
}

}  // namespace fewbit
