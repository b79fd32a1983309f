#pragma once
// Requests of many lengths that come at many times, and a scheduler that gets them.
#include <gtest/gtest.h>

#include <vector>

#include "src/run/paged/scheduler.h"
#include "tests/run/demo.h"

namespace fewbit::test {

struct Trace {
  std::vector<ServedRequest> requests;
  std::vector<int64_t> arrivals;  // the pass before which each comes
};

struct TraceShape {
  uint64_t tokens = 14, own = 40;  // at most: chosen; of a prompt, behind a beginning that a third of them share
  bool greedy = false;             // else some sample, and some have two choices
};

inline Trace random_trace(int64_t count, uint64_t seed, const TraceShape& shape = {}) {
  Rng rng(seed, "trace");
  Trace t;
  const std::vector<int32_t> shared = random_ids(48, seed + 1);
  for (int64_t i = 0; i < count; ++i) {
    ServedRequest r{.id = i, .max_tokens = static_cast<int64_t>(1 + rng.below(shape.tokens)), .stop_at_eos = false};
    if (rng.below(3) == 0) r.prompt.assign(shared.begin(), shared.begin() + static_cast<std::ptrdiff_t>(rng.below(48)));
    const std::vector<int32_t> own =
        random_ids(static_cast<int64_t>(1 + rng.below(shape.own)), mix64(seed + static_cast<uint64_t>(i)));
    r.prompt.insert(r.prompt.end(), own.begin(), own.end());
    if (!shape.greedy && rng.below(2) == 0) r.sampler = {.temperature = 1, .top_p = 0.9f, .seed = rng.next()};
    if (!shape.greedy && rng.below(8) == 0) r.choices = 2;
    t.requests.push_back(std::move(r));
    t.arrivals.push_back(static_cast<int64_t>(rng.below(60)));
  }
  return t;
}

// Steps until all requests of the trace have come and ended.
inline void drive(Scheduler& scheduler, const Trace& t, const Scheduler::Tell& tell) {
  size_t submitted = 0;
  for (int64_t pass = 0; submitted < t.requests.size() || !scheduler.idle(); ++pass) {
    if (pass > 10000) {
      ADD_FAILURE() << "no end";
      break;
    }
    for (size_t i = 0; i < t.requests.size(); ++i)
      if (t.arrivals[i] == pass) scheduler.submit(t.requests[i]), ++submitted;
    scheduler.step(tell);
  }
}

}  // namespace fewbit::test
