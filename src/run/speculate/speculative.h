#pragma once
// Generation with drafts: what generate() of src/run/engine.h does, by passes over several tokens.
#include <functional>
#include <span>

#include "src/run/paged/paged_engine.h"
#include "src/run/speculate/speculation.h"

namespace fewbit {

struct Speculated {
  std::vector<int32_t> ids{};
  SpeculationReport report{};
};

// What an engine for one sequence of `length` positions, prompt and new tokens, needs.
PagedOptions paged_for_one(const LoadOptions&, int64_t length);

// Up to `max_new` tokens after `prompt`, to an eos of the spec; `on_token` sees each as it is kept. The tokens are the
// same for any drafts, none included: a row's bits do not depend on the rows beside it, and judge() samples each row as
// if it were alone. What rejected tokens left in the cache is overwritten by the next pass. Error{usage} for ids
// outside the vocabulary or where the engine's options().longest is exceeded.
Speculated generate_speculating(Exec&, PagedEngine&, std::span<const int32_t> prompt, int64_t max_new,
                                const SamplerOptions&, const SpeculateOptions&,
                                const std::function<void(int32_t)>& on_token = {});

}  // namespace fewbit
