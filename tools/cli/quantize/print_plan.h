#pragma once
// What `quantize plan` prints.
#include "src/quant/loop/quant_job.h"
#include "src/quant/plan/disk_plan.h"
#include "src/quant/plan/plan.h"
#include "tools/cli/options.h"

namespace fewbit::cli {

// The table of linears, memory, disk and times, and as JSON. `without_gpu`: no GPU is here, whatever the plan is for.
// Error{unsupported} at the end where linears are refused.
void print_plan(const Common&, const Checkpoint&, const QuantPlan&, const PlanOptions&, const DiskPlan&,
                const QuantJob&, bool without_gpu);

}  // namespace fewbit::cli
