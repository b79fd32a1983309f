#pragma once
// Perplexity with its standard error.
#include <functional>
#include <string>

#include "src/run/runner.h"
#include "src/text/corpus.h"

namespace fewbit {

struct PerplexityResult {
  double perplexity = 0, stderr_ = 0, mean_nll = 0;
  int64_t tokens = 0;   // predicted tokens
  int64_t windows = 0, context = 0;
  double seconds = 0;
};
// Mean over all predicted tokens; stderr = perplexity * (sd of per-window mean NLL / sqrt(windows)). Windows go through
// the runner in batches of at most `batch_tokens` tokens. `progress(done, total)` may be empty.
PerplexityResult perplexity(Runner&, const Windows&, int64_t batch_tokens,
                            const std::function<void(int64_t, int64_t)>& progress = {});

}  // namespace fewbit
