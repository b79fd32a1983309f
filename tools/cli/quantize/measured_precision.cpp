#include "tools/cli/quantize/measured_precision.h"

#include "tools/cli/results.h"

namespace fewbit::cli {

ChoosePrecision ready_precision(const Common& common, const Checkpoint& c, const PlanOptions& options, uint64_t seed,
                                const Exec& ex, Progress& progress) {
  PrecisionJob job{.base = options.base,
                   .rules = options.rules,
                   .engine = options.engine,
                   .tp = options.tp,
                   .dtype = options.dtype,
                   .seed = seed,
                   .limits = options.limits};
  const PrecisionChoices choices = precision_choices(c, job);
  room_to_measure(ex, c, job, choices, options.tokens / std::max<int64_t>(1, options.seq_len), options.seq_len);
  PlanOptions least = options;
  least.chosen = smallest_recipes(choices);
  if (const std::string refusal = make_plan(c, least).memory.refusal; !refusal.empty())
    fail(ErrorKind::memory, refusal);
  job.progress = [&](double f) { progress.update("measuring the sensitivity", f); };
  return [&common, &c, job, choices](Exec& on, const Windows& windows, const std::filesystem::path& scratch) mutable {
    if (job.limits.scratch.empty()) job.limits.scratch = scratch;
    PrecisionPlan plan = choose_precision(on, c, windows, job, choices);
    say(common, plan.summary() + "\n");
    return plan;
  };
}

}  // namespace fewbit::cli
