#pragma once
// A pass over the model op by op: one prefill and one decode step with a mark behind everything that is launched.
#include <string>
#include <utility>
#include <vector>

#include "src/run/engine.h"

namespace fewbit {

struct TracedOp {
  std::string name;      // "self_attn.q_proj + self_attn.k_proj", "attention", "head"; fused ops: "rope, attention"
  std::string category;  // "linears", "attention", "experts", "norm", "other", "ends"
  int64_t layer = -1;    // -1 outside the blocks
  double begin_us = 0;   // from the beginning of the pass
  double us = 0;         // until the next mark: on CUDA between events of the stream, so a gap before a launch counts
  std::vector<std::pair<std::string, std::string>> shapes{};  // of its linears: name, "out x in"
};
struct TracedPass {
  std::string name;  // "prefill", "decode step"
  int64_t rows = 0;  // tokens that went through it
  std::vector<TracedOp> ops;
};

// Runs `prompt` [batch, len] and one step on an engine that has no sequences, each once before to warm up, without a
// recording. The engine is reset afterwards.
std::vector<TracedPass> trace_passes(Exec&, Engine&, std::span<const int32_t> prompt);

}  // namespace fewbit
