#include "src/run/speculate/speculative.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>

#include "src/run/speculate/ngram_draft.h"

namespace fewbit {
namespace {

class Generation {
 public:
  Generation(Exec& ex, PagedEngine& engine, const Drafter& drafter, std::span<const int32_t> prompt)
      : sequence_(ex, engine), text_(prompt.begin(), prompt.end()) {
    if (drafter.seen) sequence_.watch(drafter.seen);
  }

  const std::vector<int32_t>& text() const { return text_; }
  // Feeds all of the text that the cache does not have and the draft behind it; the tokens that follow, which then are
  // part of the text.
  std::vector<int32_t> step(const Draft& draft, const SamplerOptions& sampler) {
    const int64_t before = std::ssize(text_);
    if (!draft.ids.empty()) sequence_.mark();
    text_.insert(text_.end(), draft.ids.begin(), draft.ids.end());
    const Tensor logits = sequence_.feed(text_, std::ssize(draft.ids) + 1);
    std::vector<int32_t> kept = judge(logits, draft, sampler, 0, before);
    text_.resize(static_cast<size_t>(before));
    text_.insert(text_.end(), kept.begin(), kept.end());
    // The last token kept has not been fed, nor is what was rejected part of the text.
    sequence_.keep(std::ssize(text_) - 1);
    return kept;
  }

 private:
  OneSequence sequence_;
  std::vector<int32_t> text_;
};

}  // namespace

Drafter ngram_drafter() {
  return {.propose = [](std::span<const int32_t> text, int64_t k, const SamplerOptions&) {
    return Draft{.ids = ngram_draft(text, k)};
  }};
}

Speculated generate_speculating(Exec& ex, PagedEngine& engine, const Drafter& drafter, std::span<const int32_t> prompt,
                                int64_t max_new, const SamplerOptions& sampler, const SpeculateOptions& options,
                                const std::function<void(int32_t)>& on_token) {
  using Clock = std::chrono::steady_clock;
  const auto since = [](Clock::time_point start) {
    return std::chrono::duration<double>(Clock::now() - start).count();
  };
  Speculated out;
  SpeculationReport& r = out.report;
  r.kind = options.kind;
  r.k = options.k;
  if (max_new < 1) return out;
  const int64_t length = std::ssize(prompt) + max_new;
  if (prompt.empty() || length > engine.options().longest)
    fail(ErrorKind::usage, fmt::format("{} prompt and {} new tokens: expected at least one, and {} positions at most",
                                       prompt.size(), max_new, engine.options().longest));
  Generation run(ex, engine, drafter, prompt);
  const std::vector<int64_t>& eos = engine.spec().eos;
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
  if (more && options.k > 0 && drafter.begin) drafter.begin(run.text());
  while (more) {
    const Clock::time_point start = Clock::now();
    Draft draft;
    // The last token needs no draft behind it, so that no position beyond `length` is fed.
    const int64_t k = std::min(options.k, max_new - std::ssize(out.ids) - 1);
    if (k > 0 && r.stopped_after == 0 && r.steps() >= kPlainPasses) draft = drafter.propose(run.text(), k, sampler);
    const double drafting = since(start);
    const std::vector<int32_t> tokens = run.step(draft, sampler);
    r.add(std::ssize(draft.ids), std::ssize(tokens), since(start));
    r.draft_seconds += drafting;
    more = keep(tokens);
    if (options.may_stop && r.stopped_after == 0 && r.loses()) r.stopped_after = r.steps();
  }
  return out;
}

}  // namespace fewbit
