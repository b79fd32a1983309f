#pragma once
// The README.md of a quantized checkpoint: what was done to which model, by which command.
#include <string>

#include "src/quant/loop/quant_job.h"
#include "src/quant/output/report.h"

namespace fewbit {

// `source_card` is the README.md of the model ("" = it has none): it follows below ours, its metadata stay on
// top.
std::string model_card(const QuantPlan&, const QuantJob&, const QuantReport&, const std::string& source_card);

}  // namespace fewbit
