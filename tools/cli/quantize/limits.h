#pragma once
// The memory that a run may use, as flags, and the lines that tell what it will take.
#include <string>

#include "src/quant/loop/quant_job.h"
#include "src/quant/plan/disk_plan.h"
#include "src/quant/plan/plan.h"
#include "tools/cli/options.h"

namespace fewbit::cli {

struct LimitArgs {
  std::string max_gpu, max_host, scratch;  // sizes as the user wrote them; "" = what is free, less a reserve
};
void add_limit_arguments(CLI::App& app, LimitArgs& a);

// True where the plan is for a GPU: one is there, or its memory was stated (`quantize plan --gpu-memory 24GiB`).
bool plans_for_gpu(const LimitArgs&, const Exec&);
// What the flags say; where they are silent, what is free now less a reserve. Error{usage} for a scratch folder that
// does not exist or cannot be written.
MemoryLimits memory_limits(const LimitArgs&, const Exec&);
// What the run would take of the disk, and what is free.
DiskPlan disk_of(const QuantPlan&, const QuantJob&, const LimitArgs&, const Checkpoint&);
// One line for each phase, then the peaks, the states and what lies on disk.
std::string memory_table(const MemoryPlan&, const MemoryLimits&, bool on_gpu);

}  // namespace fewbit::cli
