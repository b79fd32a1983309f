#include "src/run/speculate/speculative.h"

#include <fmt/format.h>

#include <algorithm>

#include "src/core/processor_watch.h"
#include "src/run/speculate/ngram_draft.h"

namespace fewbit {
namespace {

class Generation {
 public:
  Generation(Exec& ex, Engine& engine, const Drafter& drafter, const SamplerOptions& sampler,
             const SpeculateOptions& options, std::span<const int32_t> prompt, SpeculationReport& report)
      : engine_(engine),
        drafter_(drafter),
        sampler_(sampler),
        options_(options),
        sequence_(ex, engine),
        text_(prompt.begin(), prompt.end()),
        report_(report),
        account_(first_credit(options)) {
    engine.set_hooks({.seen = drafter.seen});
  }
  ~Generation() { engine_.set_hooks({}); }
  Generation(const Generation&) = delete;
  Generation& operator=(const Generation&) = delete;

  // The token behind the prompt.
  std::vector<int32_t> begin() {
    if (options_.k > 0) engine_.prepare_each(options_.k + 1);
    std::vector<int32_t> kept = step({});
    if (options_.k > 0 && drafter_.begin) drafter_.begin(text_);
    return kept;
  }

  // The tokens of the next pass, of which `left` are wanted. The last one needs no draft behind it, so that no position
  // beyond those of the text is fed.
  std::vector<int32_t> next(int64_t left) {
    const ProcessorWatch watch;
    const Draft draft = drafted(std::min(options_.k, left - 1));
    report_.draft_seconds += watch.seconds();
    const int64_t n = std::ssize(draft.ids);
    const double cost = n > 0 ? report_.passes.cost(1, n) : 0;
    std::vector<int32_t> kept = step(draft);
    report_.add(n, std::ssize(kept), watch.seconds());
    account_.settle(std::ssize(kept) - 1, cost);
    return kept;
  }

 private:
  // Up to k tokens, and no more than the account pays for.
  Draft drafted(int64_t k) {
    if (k < 1 || report_.steps() < kPlainPasses) return {};
    int64_t most = k;
    while (options_.sparing && most > 0 && report_.passes.cost(1, most) > account_.credit()) --most;
    Draft draft;
    if (most > 0) draft = drafter_.propose(text_, most, sampler_);
    if (most < k && std::ssize(draft.ids) == most) ++report_.held_back;
    return draft;
  }
  // Feeds all of the text that the engine does not have and the draft behind it; the tokens that follow, which then are
  // part of the text.
  std::vector<int32_t> step(const Draft& draft) {
    const int64_t before = std::ssize(text_);
    if (!draft.ids.empty()) sequence_.mark();
    text_.insert(text_.end(), draft.ids.begin(), draft.ids.end());
    std::vector<int32_t> kept = judge(sequence_.feed(text_, std::ssize(draft.ids) + 1), draft, sampler_, 0, before);
    text_.resize(static_cast<size_t>(before));
    text_.insert(text_.end(), kept.begin(), kept.end());
    // The last token kept has not been fed, nor is what was rejected part of the text.
    sequence_.keep(std::ssize(text_) - 1);
    return kept;
  }

  Engine& engine_;
  const Drafter& drafter_;
  const SamplerOptions& sampler_;
  const SpeculateOptions& options_;
  OneSequence sequence_;
  std::vector<int32_t> text_;
  SpeculationReport& report_;
  DraftAccount account_;
};

}  // namespace

Drafter ngram_drafter() {
  return {.propose = [](std::span<const int32_t> text, int64_t k, const SamplerOptions&) {
    return Draft{.ids = ngram_draft(text, k)};
  }};
}

Speculated generate_speculating(Exec& ex, Engine& engine, const Drafter& drafter, std::span<const int32_t> prompt,
                                int64_t max_new, const SamplerOptions& sampler, const SpeculateOptions& options,
                                const std::function<void(int32_t)>& on_token) {
  Speculated out;
  SpeculationReport& r = out.report;
  r.kind = options.kind;
  r.k = options.k;
  if (max_new < 1) return out;
  const int64_t length = std::ssize(prompt) + max_new;
  if (prompt.empty() || length > engine.capacity())
    fail(ErrorKind::usage, fmt::format("{} prompt and {} new tokens: expected at least one, and {} positions at most",
                                       prompt.size(), max_new, engine.capacity()));
  Generation run(ex, engine, drafter, sampler, options, prompt, r);
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
  for (bool more = keep(run.begin()); more;) more = keep(run.next(max_new - std::ssize(out.ids)));
  return out;
}

}  // namespace fewbit
