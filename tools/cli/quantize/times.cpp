#include "tools/cli/quantize/times.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "src/core/strings.h"
#include "src/quant/plan/rates/rates.h"
#include "src/quant/plan/stop_choice.h"
#include "src/quant/plan/time_plan.h"

namespace fewbit::cli {
namespace {

using Phase = std::pair<std::string, double>;

// Wide linears say more of themselves than narrow ones do of them, but take longer to measure: a run that looks longer
// than this is measured once more, for a hundredth of its time, up to a few seconds.
constexpr double kLongRun = 250, kMostMeasuring = 6;  // seconds

Chunks chunks_of(const QuantPlan& plan, const PlanOptions& o) {
  return {.windows = plan.calibrates() ? o.tokens / o.seq_len : 0, .length = o.seq_len};
}

std::vector<Phase> longest_first(const TimePlan& t) {
  std::vector<Phase> all(t.phases.begin(), t.phases.end());
  std::stable_sort(all.begin(), all.end(), [](const Phase& a, const Phase& b) { return a.second > b.second; });
  return all;
}

std::string stops_table(const MemoryPlan& m) {
  std::string s;
  for (const StopChoice& c : m.stops)
    s += fmt::format("inputs of {}: {} ({}; to store {:.2f} s, to compute again {:.2f} s a block)\n", c.linears,
                     name_of(c.place), human_bytes(c.bytes), c.store_seconds, c.compute_seconds);
  return s;
}

}  // namespace

void add_times(Exec& ex, const Checkpoint& c, const PlanOptions& o, const std::filesystem::path& out, QuantPlan& plan) {
  if (o.on_gpu != ex.on_cuda()) return;
  const Chunks chunks = chunks_of(plan, o);
  RateOptions options{.dtype = o.dtype, .chunks = chunks, .out = out, .scratch = o.limits.scratch};
  Rates rates = measure_rates(ex, c, plan, options);
  const double coarse = plan_time(c, plan, chunks, o.dtype, rates).seconds;
  if (coarse > kLongRun) {
    const double before = rates.seconds;
    options.budget = std::min(kMostMeasuring, coarse / 100);
    rates = measure_rates(ex, c, plan, options);
    rates.seconds += before;
  }
  plan.memory = decide_stops(c, plan, o, rates);
  plan.time = plan_time(c, plan, chunks, o.dtype, rates);
}

void warm_up_for(Exec& ex, const Checkpoint& c, const PlanOptions& o, const QuantPlan& plan) {
  if (!ex.on_cuda()) return;
  Chunks chunks = chunks_of(plan, o);
  chunks.at_once = chunk_tokens(ex.device().kind);  // kernels are chosen by the number of rows
  warm_up(ex, c, plan, {.dtype = o.dtype, .chunks = chunks});
}

std::string time_table(const QuantPlan& plan, bool gpu_is_absent) {
  if (!plan.time && gpu_is_absent) return "time: not known, the GPU that this is planned for is not here\n";
  if (!plan.time) return "";
  std::string s = stops_table(plan.memory) + fmt::format("{:<10}  {:>12}\n", "phase", "time");
  for (const auto& [phase, seconds] : longest_first(*plan.time))
    s += fmt::format("{:<10}  {:>10.1f} s\n", phase, seconds);
  return s + fmt::format("about {} in all, by {:.1f} s of measurement on this machine\n",
                         human_seconds(plan.time->seconds), plan.time->measuring);
}

std::string expected_line(const QuantPlan& plan) {
  if (!plan.time) return "";
  std::string phases;
  for (const auto& [phase, seconds] : longest_first(*plan.time))
    if (seconds >= 0.05 * plan.time->seconds)
      phases += fmt::format("{}{} {}", phases.empty() ? "" : ", ", phase, human_seconds(seconds));
  return fmt::format("will take about {}: {}\n", human_seconds(plan.time->seconds), phases);
}

}  // namespace fewbit::cli
