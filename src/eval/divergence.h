#pragma once
// Divergence: how far a model's next-token distributions are from a baseline's on the same tokens. Steadier
// than perplexity: recipes are compared by it and proved by perplexity.
#include <array>
#include <functional>
#include <string>
#include <vector>

#include "src/eval/logit_source.h"

namespace fewbit {

// Edges of the histogram of probability shifts: bin i is [edge i, edge i + 1).
inline constexpr std::array<double, 14> kShiftEdges = {-1,   -0.5, -0.2, -0.1, -0.05, -0.02, -0.01,
                                                       0.01, 0.02, 0.05, 0.1,  0.2,   0.5,   1};

struct WorstToken {
  int64_t window = 0, position = 0;  // of the token that was to be predicted
  int32_t token = 0, base_top = 0, model_top = 0;
  double kl = 0, base_p = 0, p = 0;  // probability of the token under both
};

struct DivergenceResult {
  double base_perplexity = 0, base_stderr = 0, perplexity = 0, stderr_ = 0;  // by windows; of one: kNoError
  double ln_ratio = 0;         // mean over tokens of NLL(model) - NLL(base) = ln(ppl / base ppl)
  double ln_ratio_stderr = 0;  // of the per-window means, paired
  struct {
    double mean = 0, stderr_ = 0, p50 = 0, p90 = 0, p99 = 0, max = 0;
  } kl;                                  // KL(base || model) per scored token, nats; stderr by windows
  double top1 = 0, top1_stderr = 0;      // share of tokens with the same likeliest next token; binomial
  double top5 = 0;                       // mean overlap of the five likeliest, 0 … 1
  double shift_mean = 0, shift_rms = 0;  // of p(model) - p(base) of the text's own tokens
  std::vector<int64_t> shifts;           // tokens per bin of kShiftEdges
  std::vector<WorstToken> worst;         // by KL, the largest first
  int64_t tokens = 0, windows = 0;
  double seconds = 0;
};

struct DivergenceOptions {
  int64_t batch_tokens = 8192;
  int64_t worst = 10;  // how many tokens to name
  std::function<void(int64_t, int64_t)> progress{};
};

// Both must have one vocabulary (Error{usage} otherwise). The same tokens as perplexity().
DivergenceResult divergence(Exec&, const LogitSource& base, const LogitSource& model, const ScoredWindows&,
                            const DivergenceOptions& = {});

}  // namespace fewbit
