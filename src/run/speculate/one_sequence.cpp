#include "src/run/speculate/one_sequence.h"

#include <algorithm>

#include "src/run/speculate/speculation.h"

namespace fewbit {
namespace {

constexpr int64_t kPromptRows = 512;  // of a pass: logits are wanted of the last rows only, and slices are shorter

}  // namespace

PagedOptions paged_for_one(const LoadOptions& load, int64_t length) {
  return {.load = load,
          .pages = pages_for(length),
          .sequences = 1,
          .longest = length,
          .pass = kPromptRows + kMostDraftTokens + 1};
}

OneSequence::OneSequence(Exec& ex, PagedEngine& engine) : ex_(ex), engine_(engine), sequence_(engine.cache().begin()) {
  FEWBIT_ASSERT(sequence_ >= 0);
}

OneSequence::~OneSequence() { engine_.cache().end(sequence_); }

int64_t OneSequence::length() const { return engine_.cache().length(sequence_); }

Tensor OneSequence::feed(std::span<const int32_t> text, int64_t wanted, ConstTensorView states) {
  PagedCache& cache = engine_.cache();
  FEWBIT_ASSERT(std::ssize(text) > length() && std::ssize(text) - length() >= wanted);
  const auto pass = [&](int64_t rows, int64_t logits_from) {
    const bool room = cache.grow(sequence_, length() + rows);
    FEWBIT_ASSERT(room);
    const int64_t first = length();
    NewTokens work{sequence_, text.subspan(static_cast<size_t>(first), static_cast<size_t>(rows)), logits_from};
    if (states.data) work.states = states.row_range(first, first + rows);
    const ConstTensorView logits = engine_.pass({&work, 1});
    if (seen_) seen_(first, engine_.states());
    return logits;
  };
  while (std::ssize(text) - length() > kPromptRows + wanted) {
    pass(kPromptRows, -1);
    keep(length());
  }
  const int64_t rows = std::ssize(text) - length();
  const ConstTensorView logits = pass(rows, wanted > 0 ? rows - wanted : -1);
  return wanted > 0 ? ex_.to_host(logits) : Tensor{};
}

void OneSequence::mark() {
  if (!engine_.cache().has_states()) return;
  marked_ = length();
  const bool first = saved_.empty();
  for (int64_t layer = 0; layer < engine_.spec().layers; ++layer) {
    if (first) saved_.emplace_back();
    for (const auto& [name, state] : engine_.cache().state(layer, sequence_)) {
      Tensor& to = saved_[static_cast<size_t>(layer)][name];
      if (first) to = ex_.alloc(state.dtype(), state.shape());
      ex_.copy(state, to);
    }
  }
}

void OneSequence::keep(int64_t length) {
  PagedCache& cache = engine_.cache();
  FEWBIT_ASSERT(length <= this->length());
  if (length < this->length() && cache.has_states()) {
    FEWBIT_ASSERT(!saved_.empty() && marked_ <= length);
    for (int64_t layer = 0; layer < engine_.spec().layers; ++layer)
      for (const auto& [name, state] : cache.state(layer, sequence_))
        ex_.copy(saved_[static_cast<size_t>(layer)].at(name), state);
    length = marked_;
  }
  cache.set_length(sequence_, length);
  cache.forget(sequence_);
}

}  // namespace fewbit
