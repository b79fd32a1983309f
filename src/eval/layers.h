#pragma once
// Where two models part: hidden states per block and outputs per linear, one block of each on the device at a
// time.
#include <functional>
#include <string>
#include <vector>

#include "src/eval/protocol.h"
#include "src/run/block.h"

namespace fewbit {

// Of a model's values against the baseline's: cosine over all of them, and 10 log10(||base||^2 / ||model -
// base||^2).
struct Closeness {
  double cosine = 1, sqnr_db = 0;
};
inline constexpr double kMaxSqnr = 200;  // dB, also for values that are equal

struct LinearCloseness {
  std::string name;  // in the block: "self_attn.q_proj"
  Closeness value;
};
struct LayerCloseness {
  int64_t layer = 0;
  Closeness states;  // behind the block, each model on its own states
  Closeness alone;   // behind the block, the model's block on the baseline's states: this block's own share
  // Outputs on the baseline's states, every output feature scaled to fit, because a transform may have moved
  // a scale there. The experts of a mixture are left out.
  std::vector<LinearCloseness> linears;
};

// Over the first windows that make up at most `max_tokens` tokens (at least one). Error{usage} where the
// models do not have the same blocks.
std::vector<LayerCloseness> layer_closeness(Exec&, const Checkpoint& base, const Checkpoint& model, const LoadOptions&,
                                            const Windows&, int64_t max_tokens,
                                            const std::function<void(int64_t, int64_t)>& progress = {});

}  // namespace fewbit
