#pragma once
// The time of a run, before it starts: counts of operations and bytes by phase, from the plan, times measured rates
// (rates.h). A pure function of the two. Phases have the names of the report's.
#include <map>
#include <optional>
#include <string>

#include "src/calib/chunks.h"
#include "src/quant/plan/plan.h"

namespace fewbit {

struct Rates;

// A pass over a block's chunks: from the op where it begins to the one in front of which it stops.
struct PlannedPass {
  size_t begin = 0, stop = 0;
  size_t begins_next = 0;  // where the pass behind it begins
  int times = 1;           // how often it runs from `begin`; later ones from `begins_next`
  bool observes = false;   // the input of op `stop` is summed up
  // Where the unquantized stream stops: behind the last look at it (last_look()) the block's end. Then it stays there,
  // at `begin`.
  size_t full_stop = 0;
};
// The op at whose input a block's unquantized stream is looked at for the last time, in a single pass: from there it
// runs to the block's end at once, and nothing of what lives in front of that op is kept of it or computed again.
// Nothing where there is no such stream or pass.
std::optional<size_t> last_look(const ModelSpec&, const QuantPlan&, int64_t layer);
// The passes of a block in order, the last one to its end, as BlockLoop runs them.
std::vector<PlannedPass> passes_of(const Checkpoint&, const QuantPlan&, int64_t layer);

// Seconds of one stream to bring all tokens from op `begin` in front of op `stop`.
double forward_seconds(const Rates&, int kind, size_t begin, size_t stop, int64_t tokens);
// Of the quantized stream and `full` others (QuantPlan::full_streams), for a pass as often as it runs.
double forward_seconds(const Rates&, int kind, const PlannedPass&, int64_t tokens, double full);

TimePlan plan_time(const Checkpoint&, const QuantPlan&, const Chunks&, DType dtype, const Rates&);

}  // namespace fewbit
