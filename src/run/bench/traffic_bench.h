#pragma once
// A checkpoint under load: random prompts of many sequences through the scheduler and the paged cache that
// `runner serve` uses, in this process, so that no network is timed. Greedy, every request to its last token.
#include "src/run/bench/traffic.h"
#include "src/run/paged/scheduler.h"

namespace fewbit {

struct TrafficOptions {
  LoadOptions load{};
  std::vector<TrafficShape> shapes{TrafficShape{}};  // one row each, in this order; the weights are loaded once
  Arrivals arrivals{};
  int64_t shared_tokens = 0;  // with which every prompt begins, of those it has; the others are random
  int64_t positions = 0;      // of the cache; 0: as many as all sequences of the largest row need
  int64_t budget = 512;       // rows of a pass
  bool prefix_cache = true;
  bool batch_invariant = false;  // PagedOptions
  SpeculateOptions speculate{};
  std::filesystem::path draft{};  // the model of DraftKind::model
  Slo slo{};
};

struct TrafficRow {
  TrafficShape shape{};
  TrafficTimes times{};
  SchedulerCounts counts{};
  // Share of the cache's pages that sequences hold, at every pass; what only the prefix cache holds is free for them.
  double cache_mean = 0, cache_peak = 0;
  double variant_tokens_per_s = 0;  // of a GPU asked to be batch-invariant, where it need not be; else 0
  // Of the tokens with which sequences were admitted, the share found in the prefix cache; preempted ones come twice.
  double hit_rate() const {
    return static_cast<double>(counts.shared_tokens) / static_cast<double>(std::max<int64_t>(1, counts.prompt_tokens));
  }
  double rows_per_pass() const { return static_cast<double>(counts.rows) / static_cast<double>(counts.passes); }
  // Of the time of the passes: who goes into them, and with it what follows them (choosing tokens, sharing pages).
  double planning_share() const { return counts.planning_s / steps_s(); }
  double scheduling_share() const { return (counts.planning_s + counts.choosing_s) / steps_s(); }
  double steps_s() const { return counts.planning_s + counts.engine_s + counts.choosing_s; }
};

struct TrafficResult {
  double load_s = 0;  // open, copy, first buffers
  std::string device;
  int64_t pages = 0, cache_bytes = 0, cache_bytes_per_token = 0, peak_bytes = 0;
  std::vector<TrafficRow> rows{};
  std::vector<std::string> notes{};
};

// Error{usage} where a request has more positions than the model, the cache has fewer than a request, or prompts are
// shorter than what they share; Error{unsupported} as PagedEngine. All before any weight is read.
TrafficResult bench_traffic(Exec&, const std::filesystem::path& model, const TrafficOptions&,
                            const BenchProgress& = {});

}  // namespace fewbit
