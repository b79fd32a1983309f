#pragma once
// Divergence: how far a model's next-token distributions are from a baseline's on the same tokens. Steadier
// than perplexity: recipes are compared by it and proved by perplexity.
#include <functional>
#include <string>

#include "src/run/runner.h"
#include "src/text/corpus.h"

namespace fewbit {

struct DivergenceResult {
  double base_perplexity = 0, perplexity = 0;
  double ln_ratio = 0;         // mean over tokens of NLL(model) - NLL(base) = ln(ppl / base ppl)
  double ln_ratio_stderr = 0;  // of the per-window means, paired
  struct {
    double mean = 0, p50 = 0, p90 = 0, p99 = 0, max = 0;
  } kl;             // KL(base || model) per predicted token, nats
  double top1 = 0;  // share of tokens with the same likeliest next token
  double top5 = 0;  // mean overlap of the five likeliest, 0 … 1
  int64_t tokens = 0, windows = 0;
  double seconds = 0;
};

// Both runners must have one vocabulary (Error{usage} otherwise). The same positions as perplexity().
DivergenceResult divergence(Exec&, Runner& base, Runner& model, const Windows&, int64_t batch_tokens,
                            const std::function<void(int64_t, int64_t)>& progress = {});

}  // namespace fewbit
