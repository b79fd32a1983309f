#include "src/run/speculate/speculative.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>

#include "src/run/speculate/ngram_draft.h"

namespace fewbit {
namespace {

constexpr int64_t kPromptRows = 512;  // of a pass: logits are wanted of the last row only, and slices are shorter

class Generation {
 public:
  Generation(Exec& ex, PagedEngine& engine, std::span<const int32_t> prompt)
      : ex_(ex), engine_(engine), sequence_(engine.cache().begin()), text_(prompt.begin(), prompt.end()) {
    FEWBIT_ASSERT(sequence_ >= 0);
  }
  ~Generation() { engine_.cache().end(sequence_); }
  Generation(const Generation&) = delete;
  Generation& operator=(const Generation&) = delete;

  const std::vector<int32_t>& text() const { return text_; }
  // Feeds all of the text that the cache does not have and the draft behind it; the tokens that follow, which then are
  // part of the text.
  std::vector<int32_t> step(std::span<const int32_t> draft, const SamplerOptions& sampler) {
    PagedCache& cache = engine_.cache();
    while (std::ssize(text_) - cache.length(sequence_) > kPromptRows) {
      const int64_t at = cache.length(sequence_);
      feed({text_.data() + at, static_cast<size_t>(kPromptRows)}, -1);
    }
    const int64_t at = cache.length(sequence_);
    std::vector<int32_t> ids(text_.begin() + at, text_.end());
    const int64_t last = std::ssize(ids) - 1;
    ids.insert(ids.end(), draft.begin(), draft.end());
    const Tensor logits = ex_.to_host(feed(ids, last));
    std::vector<int32_t> kept = judge(logits, draft, sampler, 0, std::ssize(text_));
    text_.insert(text_.end(), kept.begin(), kept.end());
    // The last token kept has not been fed, nor is what was rejected part of the text.
    cache.set_length(sequence_, std::ssize(text_) - 1);
    cache.forget(sequence_);
    return kept;
  }

 private:
  ConstTensorView feed(std::span<const int32_t> ids, int64_t logits_from) {
    PagedCache& cache = engine_.cache();
    const bool room = cache.grow(sequence_, cache.length(sequence_) + std::ssize(ids));
    FEWBIT_ASSERT(room);
    const NewTokens work{sequence_, ids, logits_from};
    const ConstTensorView logits = engine_.pass({&work, 1});
    if (logits_from < 0) cache.forget(sequence_);
    return logits;
  }

  Exec& ex_;
  PagedEngine& engine_;
  int sequence_;
  std::vector<int32_t> text_;
};

}  // namespace

PagedOptions paged_for_one(const LoadOptions& load, int64_t length) {
  return {.load = load,
          .pages = (length + kPagePositions - 1) / kPagePositions,
          .sequences = 1,
          .longest = length,
          .pass = kPromptRows + kMostDraftTokens};
}

Speculated generate_speculating(Exec& ex, PagedEngine& engine, std::span<const int32_t> prompt, int64_t max_new,
                                const SamplerOptions& sampler, const SpeculateOptions& options,
                                const std::function<void(int32_t)>& on_token) {
  using Clock = std::chrono::steady_clock;
  Speculated out;
  out.report.k = options.k;
  if (max_new < 1) return out;
  const int64_t length = std::ssize(prompt) + max_new;
  if (prompt.empty() || length > engine.options().longest)
    fail(ErrorKind::usage, fmt::format("{} prompt and {} new tokens: expected at least one, and {} positions at most",
                                       prompt.size(), max_new, engine.options().longest));
  Generation run(ex, engine, prompt);
  const std::vector<int64_t>& eos = engine.spec().eos;
  SpeculationReport& r = out.report;
  // Keeps what is wanted; whether more is.
  const auto keep = [&](const std::vector<int32_t>& tokens) {
    for (const int32_t id : tokens) {
      out.ids.push_back(id);
      if (on_token) on_token(id);
      if (std::ssize(out.ids) == max_new || std::ranges::find(eos, id) != eos.end()) return false;
    }
    return true;
  };
  bool more = keep(run.step({}, sampler));
  while (more) {
    const Clock::time_point start = Clock::now();
    std::vector<int32_t> draft;
    // The last token needs no draft behind it, so that no position beyond `length` is fed.
    const int64_t k = std::min(options.k, max_new - std::ssize(out.ids) - 1);
    if (k > 0 && r.stopped_after == 0 && r.steps() >= kPlainPasses) draft = ngram_draft(run.text(), k);
    const std::vector<int32_t> tokens = run.step(draft, sampler);
    r.add(std::ssize(draft), std::ssize(tokens), std::chrono::duration<double>(Clock::now() - start).count());
    more = keep(tokens);
    if (options.may_stop && r.stopped_after == 0 && r.loses()) r.stopped_after = r.steps();
  }
  return out;
}

}  // namespace fewbit
