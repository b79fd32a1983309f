#pragma once
// Generation with drafts: what generate() of src/run/engine.h does, by passes over several tokens.
#include <functional>
#include <span>

#include "src/run/speculate/one_sequence.h"
#include "src/run/speculate/speculation.h"

namespace fewbit {

struct Speculated {
  std::vector<int32_t> ids{};
  SpeculationReport report{};
};

// Up to `max_new` tokens after `prompt`, to an eos of the spec; `on_token` sees each as it is kept. Greedy tokens are
// those of generate(), whatever the drafts: passes without one are its decode steps, a row of the others has the bits
// of such a step (Engine::decode_each), and judge() chooses of each row as if it were alone. What rejected tokens left
// in the cache is overwritten by the next pass; where layers keep a state, it goes back to before the draft and the
// next pass takes the accepted tokens once more. Error{usage} for ids outside the vocabulary or beyond the engine's
// capacity.
Speculated generate_speculating(Exec&, Engine&, const Drafter&, std::span<const int32_t> prompt, int64_t max_new,
                                const SamplerOptions&, const SpeculateOptions&,
                                const std::function<void(int32_t)>& on_token = {});

// Prompt lookup (src/run/speculate/ngram_draft.h).
Drafter ngram_drafter();

}  // namespace fewbit
