#pragma once
// The identity of a run: everything that decides the bits of its output, and nothing else. How much memory, how many
// threads or processes it has, where it writes and how it cuts shards are not in it.
#include <string>

#include "src/quant/loop/quant_job.h"
#include "src/quant/plan/plan.h"
#include "src/text/corpus.h"

namespace fewbit {

// job.sources must be there. A JSON object on one line, its keys in the words that a user knows.
std::string identity_of(const Exec&, const Checkpoint&, const QuantPlan&, const Windows&, const QuantJob&);

// What differs, key by key: "seed (then 0, now 1), …"; "" where nothing does.
std::string difference(const std::string& then, const std::string& now);

}  // namespace fewbit
