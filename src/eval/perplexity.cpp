// Perplexity: the mean over all predicted tokens, and its standard error from the spread of the windows.
#include "src/eval/perplexity.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <numeric>

namespace fewbit {

PerplexityResult perplexity(Runner& runner, const Windows& w, int64_t batch_tokens,
                            const std::function<void(int64_t, int64_t)>& progress) {
  if (w.count < 1 || w.length < 2)
    fail(ErrorKind::usage, w.source + ": perplexity needs at least one window of at least 2 tokens, found " +
                               std::to_string(w.count) + " of " + std::to_string(w.length));
  const auto start = std::chrono::steady_clock::now();
  const int64_t per_batch = std::max<int64_t>(1, batch_tokens / w.length), predicted = w.length - 1;
  std::vector<double> means;  // of each window
  for (int64_t begin = 0; begin < w.count; begin += per_batch) {
    const int64_t n = std::min(per_batch, w.count - begin);
    const std::span<const int32_t> ids(w.ids.data() + begin * w.length, static_cast<size_t>(n * w.length));
    const std::vector<float> losses = runner.nll(ids, n);
    for (int64_t i = 0; i < n; ++i) {
      const auto first = losses.begin() + i * predicted;
      means.push_back(std::accumulate(first, first + predicted, 0.0) / static_cast<double>(predicted));
    }
    if (progress) progress(begin + n, w.count);
  }
  PerplexityResult r;
  const auto count = static_cast<double>(w.count);
  r.mean_nll = std::accumulate(means.begin(), means.end(), 0.0) / count;
  double squares = 0;
  for (const double m : means) squares += (m - r.mean_nll) * (m - r.mean_nll);
  r.perplexity = std::exp(r.mean_nll);
  r.stderr_ = w.count > 1 ? r.perplexity * std::sqrt(squares / (count - 1) / count) : 0;
  r.tokens = w.count * predicted;
  r.windows = w.count;
  r.context = w.length;
  r.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return r;
}

}  // namespace fewbit
