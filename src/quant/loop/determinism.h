#pragma once
// `quantize --check-determinism`: does this machine compute the same twice?
#include "src/quant/journal/run_folder.h"
#include "src/quant/loop/quant_job.h"
#include "src/quant/plan/plan.h"
#include "src/text/corpus.h"

namespace fewbit {

// Quantizes the first block twice, in folders of their own inside of the run's, and compares every tensor that would be
// sealed. Error{numeric} that names those which differ.
void check_determinism(Exec&, const Checkpoint&, const QuantPlan&, const Windows&, const QuantJob&, const RunFolder&);

}  // namespace fewbit
