#pragma once
// Perplexity with its standard error.
#include <functional>
#include <string>

#include "src/eval/protocol.h"
#include "src/run/runner.h"

namespace fewbit {

struct PerplexityResult {
  double perplexity = 0, stderr_ = 0, mean_nll = 0;
  double bits_per_byte = 0, word_perplexity = 0;  // 0 where the text is not known
  int64_t tokens = 0;                             // scored tokens
  int64_t windows = 0, context = 0;
  double seconds = 0;                    // of the passes, loading excluded (not of streamed ones)
  std::map<std::string, double> phases;  // seconds on the device (PhaseClock)
};

// From the losses of all scored tokens, window after window. Mean over all of them; stderr = perplexity * (sd
// of the windows' means / sqrt(windows)); under llama.cpp perplexity * sqrt(variance over tokens / (tokens -
// 1)), as its tool prints; kNoError (src/core/text/with_error.h) of one window. bits_per_byte = mean_nll / ln 2 *
// tokens per byte and word_perplexity = exp(mean_nll * tokens per word), with the rates of the text that the windows
// spell. Error{numeric} where a loss is not finite.
PerplexityResult summarise(const ScoredWindows&, const std::vector<float>& losses);

// Windows go through the runner in batches of at most `batch_tokens` tokens. `progress(done, total)` may be
// empty.
PerplexityResult perplexity(Runner&, const ScoredWindows&, int64_t batch_tokens,
                            const std::function<void(int64_t, int64_t)>& progress = {});

// The same with one block at a time on the device (src/run/streamed.h); progress counts blocks. `notes` as of
// a Runner.
PerplexityResult perplexity_streamed(Exec&, const Checkpoint&, const LoadOptions&, const ScoredWindows&,
                                     int64_t batch_tokens, std::vector<std::string>* notes,
                                     const std::function<void(int64_t, int64_t)>& progress = {});

}  // namespace fewbit
