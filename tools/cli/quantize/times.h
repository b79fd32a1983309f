#pragma once
// The time that a run will take, measured on this machine, and the lines that tell of it.
#include <filesystem>
#include <string>

#include "src/quant/plan/plan.h"

namespace fewbit::cli {

// Measures rates on `ex` (about two seconds) and puts the time into the plan, and decides by it what the
// calibration keeps; not for a GPU that is not here.
void add_times(Exec& ex, const Checkpoint&, const PlanOptions&, const std::filesystem::path& out, QuantPlan& plan);
// Of several ranks with GPUs: what such a measurement leaves behind, kernels that are loaded and chosen.
void warm_up_for(Exec& ex, const Checkpoint&, const PlanOptions&, const QuantPlan&);
// What is stored and what computed again, a line for each phase, then the whole; one line that says why where the time
// is not known.
std::string time_table(const QuantPlan&, bool gpu_is_absent);
// Of a run that begins: "about 2 min 05 s: forward 60 s, quantize 40 s, …"; "" where the time is not known.
std::string expected_line(const QuantPlan&);

}  // namespace fewbit::cli
