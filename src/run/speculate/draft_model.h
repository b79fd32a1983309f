#pragma once
// A second model that drafts, on a cache of its own.
#include "src/run/speculate/one_sequence.h"
#include "src/run/speculate/speculation.h"

namespace fewbit {

class DraftModel {
 public:
  // Drafts have ids below `vocab` alone: tables of embeddings are padded differently. Both models must know the same
  // tokens by the same ids, which the caller checks.
  DraftModel(Exec&, const Checkpoint&, const LoadOptions&, int64_t length, int64_t vocab);
  const std::vector<std::string>& notes() const { return engine_.notes(); }

  // Reads what of the text it has not read, the last token left out.
  void read(std::span<const int32_t> text);
  // k tokens behind the text, each drawn from what the options leave of the model's logits, in a stream of the seed
  // that is the drafts' own; greedy ones are certain. Each text must begin with that of the call before.
  Draft propose(std::span<const int32_t> text, int64_t k, const SamplerOptions&);
  Drafter drafter();  // this one, which must outlive it

 private:
  Engine engine_;
  OneSequence sequence_;
  int64_t vocab_;
  std::vector<int32_t> fed_;  // the tokens of the positions that the cache has, guesses among them
};

}  // namespace fewbit
