#include "src/run/speculate/draft_model.h"

#include <algorithm>

namespace fewbit {

DraftModel::DraftModel(Exec& ex, const Checkpoint& c, const LoadOptions& load, int64_t length, int64_t vocab)
    : engine_(ex, c, {.load = load, .capacity = length}),
      sequence_(ex, engine_),
      vocab_(std::min(vocab, engine_.spec().vocab)) {}

void DraftModel::read(std::span<const int32_t> text) {
  if (std::ssize(text) - 1 <= sequence_.length()) return;
  sequence_.feed(text.first(text.size() - 1), 0);
  fed_.assign(text.begin(), text.end() - 1);
}

Draft DraftModel::propose(std::span<const int32_t> text, int64_t k, const SamplerOptions& options) {
  // Guesses that were accepted are part of the text now, the others go.
  const auto agreed = std::ranges::mismatch(fed_, text).in1 - fed_.begin();
  sequence_.keep(std::min<int64_t>(agreed, std::ssize(text) - 1));
  sequence_.mark();
  std::vector<int32_t> all(text.begin(), text.end());
  Draft draft;
  for (int64_t i = 0; i < k; ++i) {
    const ConstTensorView logits = sequence_.feed(all, 1);
    add_drawn(draft, all, {logits.as<float>(), static_cast<size_t>(vocab_)}, options);
  }
  fed_.assign(all.begin(), all.begin() + sequence_.length());
  return draft;
}

Drafter DraftModel::drafter() {
  return {.propose = [this](std::span<const int32_t> text, int64_t k,
                            const SamplerOptions& options) { return propose(text, k, options); },
          .begin = [this](std::span<const int32_t> text) { read(text); }};
}

}  // namespace fewbit
