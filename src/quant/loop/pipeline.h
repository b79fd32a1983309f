#pragma once
// The pipeline: one block at a time, true-sequential. Inside a block the calibration stops at every group of
// linears that share an input: observe, quantize, pack, replace, go on with the quantized weight. Two streams
// are kept; the quantized one feeds the next block.
#include <functional>

#include "src/quant/loop/journal.h"
#include "src/quant/output/report.h"
#include "src/quant/plan/plan.h"
#include "src/text/corpus.h"

namespace fewbit {

struct QuantJob {
  std::string recipe{};   // as the user gave it, for the report
  std::string command{};  // that makes the same checkpoint again, for the model card
  std::string note{};     // what the report should say aloud: a shorter calibration than asked for …
  std::filesystem::path out{};
  std::optional<PrecisionPlan> precision{};  // what `auto` chose, for the report
  DType dtype = DType::f32;                  // compute dtype of the calibration
  uint64_t seed = 0;
  bool allow_rtn = false;
  bool force = false;   // replace an existing OUT
  bool resume = false;  // go on where OUT.partial stopped
  int64_t shard_bytes = int64_t{5} << 30;
  std::function<bool()> stop_requested{};                            // asked between blocks
  std::function<void(const std::string& phase, double)> progress{};  // phase and fraction done
};

// Refuses an OUT that exists (unless force) or whose parent is missing, before anything is computed.
void check_out(const QuantJob&);

// `windows` is empty (count 0) for recipes that need no calibration. Error{stopped} after a sealed block when
// a stop was requested; the run then resumes with job.resume.
QuantReport run_pipeline(Exec&, const Checkpoint&, const QuantPlan&, const Windows& windows, const QuantJob&);

}  // namespace fewbit
