#pragma once
// `quantize auto`: what its measurement needs, refused before it begins.
#include <filesystem>
#include <functional>

#include "src/quant/plan/plan.h"
#include "src/quant/search/mixed_precision.h"
#include "tools/cli/options.h"

namespace fewbit::cli {

// States that fit no memory go to a file in `scratch`, where the limits name no folder for them.
using ChoosePrecision = std::function<PrecisionPlan(Exec&, const Windows&, const std::filesystem::path& scratch)>;
// What `auto` will do with its windows, once all has been refused that can be without them: choices that cannot be
// made, and limits of memory that do not hold the measurement or, whatever is chosen, the run. `options` are those of
// the run's plan, without what is chosen.
ChoosePrecision ready_precision(const Common&, const Checkpoint&, const PlanOptions& options, uint64_t seed,
                                const Exec&, Progress&);

}  // namespace fewbit::cli
