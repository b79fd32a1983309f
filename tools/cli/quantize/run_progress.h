#pragma once
#include "src/quant/loop/quant_job.h"
#include "tools/cli/options.h"

namespace fewbit::cli {

// The job tells of itself from here on: block, phase and memory stand behind the bar, and with --verbose every linear
// has a line on standard error when it is coded. What is given must live as long as the job.
void show_progress(const Common&, const Checkpoint&, const Exec&, Progress&, QuantJob&);

}  // namespace fewbit::cli
