#pragma once
// The time of a run, before it starts: counts of operations and bytes by phase, from the plan, times measured rates
// (rates.h). A pure function of the two. Phases have the names of the report's.
#include <map>
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
};
// The passes of a block in order, the last one to its end, as BlockLoop runs them.
std::vector<PlannedPass> passes_of(const Checkpoint&, const QuantPlan&, int64_t layer);

// Seconds of one stream to bring all tokens from op `begin` in front of op `stop`.
double forward_seconds(const Rates&, int kind, size_t begin, size_t stop, int64_t tokens);

TimePlan plan_time(const Checkpoint&, const QuantPlan&, const Chunks&, DType dtype, const Rates&);

}  // namespace fewbit
