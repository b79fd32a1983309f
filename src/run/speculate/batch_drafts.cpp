#include "src/run/speculate/batch_drafts.h"

#include <algorithm>

#include "src/run/speculate/ngram_draft.h"

namespace fewbit {

BatchDrafter ngram_batch_drafter() {
  return {.propose = [](std::span<DraftWish> wishes) {
    for (DraftWish& w : wishes) w.ids = ngram_draft(w.text, w.most);
  }};
}

DraftEngine::DraftEngine(Exec& ex, const Checkpoint& c, const PagedOptions& o, int64_t vocab)
    : engine_(ex, c, o), vocab_(std::min(vocab, c.spec.vocab)) {
  if (engine_.cache().has_states())
    fail(ErrorKind::unsupported, c.dir.string() +
                                     ": a draft model of many sequences must not have layers that keep a "
                                     "state; take another one, or `runner generate`");
}

// Adds what of the text is not read to a pass, all but the last rows of a long one in passes before it. False where
// there is no page for it. Pages that a window has left go by what the text says: guesses are taken back.
bool DraftEngine::feed(Reader& r, std::span<const int32_t> text, std::vector<NewTokens>& work) {
  PagedCache& cache = engine_.cache();
  const int64_t total = std::ssize(text), each = engine_.options().pass;
  for (;;) {
    const int64_t at = cache.length(r.slot), rows = std::min(each, total - at);
    if (!cache.grow(r.slot, at + rows)) return false;
    const NewTokens part{r.slot, text.subspan(static_cast<size_t>(at), static_cast<size_t>(rows)), rows - 1};
    if (at + rows == total) {
      work.push_back(part);
      r.read.assign(text.begin(), text.end());
      return true;
    }
    engine_.pass({&part, 1});
    cache.forget(r.slot);
  }
}

// The positions whose tokens are those of the text, but for its last one.
void DraftEngine::take_back(Reader& r, std::span<const int32_t> text) {
  const auto agreed = std::ranges::mismatch(r.read, text).in1 - r.read.begin();
  engine_.cache().set_length(r.slot, std::min<int64_t>(agreed, std::ssize(text) - 1));
  engine_.cache().forget(r.slot);
}

void DraftEngine::propose(std::span<DraftWish> wishes) {
  std::vector<std::vector<int32_t>> texts;
  for (const DraftWish& w : wishes) {
    texts.emplace_back(w.text.begin(), w.text.end());
    if (!readers_.contains(w.sequence))
      if (const int slot = engine_.cache().begin(); slot >= 0) readers_.emplace(w.sequence, Reader{slot, {}});
    if (const auto reader = readers_.find(w.sequence); reader != readers_.end()) take_back(reader->second, w.text);
  }
  for (int64_t round = 0;; ++round) {
    std::vector<NewTokens> work;
    std::vector<size_t> whose;
    for (size_t i = 0; i < wishes.size(); ++i) {
      const auto reader = readers_.find(wishes[i].sequence);
      if (reader == readers_.end() || std::ssize(wishes[i].ids) != round || wishes[i].most <= round) continue;
      if (feed(reader->second, texts[i], work))
        whose.push_back(i);
      else
        forget(wishes[i].sequence);
    }
    if (work.empty()) return;
    engine_.pass(work);
    const bool of_fewer = vocab_ < engine_.spec().vocab;
    const PassResult result = engine_.result(std::vector<uint8_t>(whose.size(), of_fewer));
    for (size_t row = 0; row < whose.size(); ++row) {
      const float* const values = result.logits[row].data();
      texts[whose[row]].push_back(values ? static_cast<int32_t>(std::max_element(values, values + vocab_) - values)
                                         : result.likeliest[row]);
      wishes[whose[row]].ids.push_back(texts[whose[row]].back());
    }
  }
}

void DraftEngine::forget(int sequence) {
  const auto reader = readers_.find(sequence);
  if (reader == readers_.end()) return;
  engine_.cache().end(reader->second.slot);
  readers_.erase(reader);
}

BatchDrafter DraftEngine::drafter() {
  return {.propose = [this](std::span<DraftWish> wishes) { propose(wishes); },
          .forget = [this](int sequence) { forget(sequence); }};
}

}  // namespace fewbit
