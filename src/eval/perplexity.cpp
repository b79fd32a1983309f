// Perplexity: the mean over all scored tokens, and its standard error from the spread of the windows.
#include "src/eval/perplexity.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "src/core/stopwatch.h"
#include "src/core/text/with_error.h"
#include "src/run/streamed.h"

namespace fewbit {
namespace {

void check_windows(const Windows& w) {
  if (w.count < 1 || w.length < 2)
    fail(ErrorKind::usage, w.source + ": perplexity needs at least one window of at least 2 tokens, found " +
                               std::to_string(w.count) + " of " + std::to_string(w.length));
}

// Standard error of the mean from the means of the windows.
double error_of_means(const std::vector<double>& means, double mean) {
  const auto n = static_cast<double>(means.size());
  double squares = 0;
  for (const double m : means) squares += (m - mean) * (m - mean);
  return n > 1 ? std::sqrt(squares / (n - 1) / n) : kNoError;
}

// llama.cpp's: over tokens, the variance not corrected.
double error_of_tokens(const std::vector<float>& losses, double mean) {
  const auto n = static_cast<double>(losses.size());
  double squares = 0;
  for (const double l : losses) squares += l * l;
  const double variance = squares / n - mean * mean;
  return n > 1 ? std::sqrt(std::max(0.0, variance) / (n - 1)) : kNoError;
}

std::span<const int32_t> ids_of(const Windows& w, int64_t begin, int64_t end) {
  return std::span(w.ids).subspan(static_cast<size_t>(begin * w.length), static_cast<size_t>((end - begin) * w.length));
}

}  // namespace

PerplexityResult summarise(const ScoredWindows& w, const std::vector<float>& losses) {
  FEWBIT_ASSERT(static_cast<int64_t>(losses.size()) == w.scored());
  if (const auto bad = std::count_if(losses.begin(), losses.end(), [](float l) { return !std::isfinite(l); }))
    fail(ErrorKind::numeric, w.windows.source + ": " + std::to_string(bad) + " of " + std::to_string(losses.size()) +
                                 " scored tokens have no finite probability, so that there is no perplexity; the model "
                                 "holds NaN or infinities, or overflows in this --dtype");
  PerplexityResult r;
  std::vector<double> means;
  auto at = losses.begin();
  for (int64_t i = 0; i < w.windows.count; ++i) {
    const int64_t n = w.scored_in(i);
    means.push_back(std::accumulate(at, at + n, 0.0) / static_cast<double>(n));
    at += n;
  }
  r.mean_nll = std::accumulate(losses.begin(), losses.end(), 0.0) / static_cast<double>(losses.size());
  r.perplexity = std::exp(r.mean_nll);
  r.stderr_ = r.perplexity * (w.protocol == Protocol::llama_cpp ? error_of_tokens(losses, r.mean_nll)
                                                                : error_of_means(means, r.mean_nll));
  if (w.bytes_per_token > 0) r.bits_per_byte = r.mean_nll / std::log(2.0) / w.bytes_per_token;
  if (w.words_per_token > 0) r.word_perplexity = std::exp(r.mean_nll / w.words_per_token);
  r.tokens = static_cast<int64_t>(losses.size());
  r.windows = w.windows.count;
  r.context = w.windows.length;
  return r;
}

PerplexityResult perplexity(Runner& runner, const ScoredWindows& w, int64_t batch_tokens,
                            const std::function<void(int64_t, int64_t)>& progress) {
  check_windows(w.windows);
  const Stopwatch watch;
  PhaseClock clock(runner.exec());
  runner.measure(&clock);
  const int64_t limit = std::max<int64_t>(1, batch_tokens / w.windows.length);
  std::vector<float> losses;
  losses.reserve(static_cast<size_t>(w.scored()));
  for (int64_t begin = 0; begin < w.windows.count;) {
    const int64_t end = w.run_end(begin, limit);
    const std::vector<float> part = runner.nll(ids_of(w.windows, begin, end), end - begin, w.first_of(begin));
    losses.insert(losses.end(), part.begin(), part.end());
    begin = end;
    if (progress) progress(begin, w.windows.count);
  }
  runner.measure(nullptr);
  PerplexityResult r = summarise(w, losses);
  r.seconds = watch.seconds();
  r.phases = clock.seconds();
  return r;
}

PerplexityResult perplexity_streamed(Exec& ex, const Checkpoint& c, const LoadOptions& load, const ScoredWindows& w,
                                     int64_t batch_tokens, std::vector<std::string>* notes,
                                     const std::function<void(int64_t, int64_t)>& progress) {
  check_windows(w.windows);
  const Stopwatch watch;
  std::vector<float> losses;
  const StreamedPass pass{.ids = w.windows.ids,
                          .seqs = w.windows.count,
                          .batch_seqs = std::max<int64_t>(1, batch_tokens / w.windows.length),
                          .progress = progress};
  *notes = run_streamed(ex, c, load, pass, [&](int64_t begin, int64_t end, ConstTensorView x, const Ends& ends) {
    for (int64_t i = begin; i < end;) {
      const int64_t stop = w.run_end(i, end - i), len = w.windows.length;
      const std::vector<float> part =
          nll_of_states(ex, c.spec, ends, x.row_range((i - begin) * len, (stop - begin) * len),
                        ids_of(w.windows, i, stop), stop - i, w.first_of(i));
      losses.insert(losses.end(), part.begin(), part.end());
      i = stop;
    }
  });
  PerplexityResult r = summarise(w, losses);
  r.seconds = watch.seconds();
  return r;
}

}  // namespace fewbit
