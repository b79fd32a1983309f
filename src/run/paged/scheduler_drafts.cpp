// What drafts add to a pass, and what comes of them.
#include <algorithm>

#include "src/core/processor_watch.h"
#include "src/core/stopwatch.h"
#include "src/run/kv_cache.h"
#include "src/run/paged/scheduler.h"

namespace fewbit {

void check_drafts(const ModelSpec& spec, DType compute, const SpeculateOptions& o) {
  for (int64_t layer = 0; layer < spec.layers && o.k > 0; ++layer)
    if (recurrent_bytes(spec.block(layer), compute) > 0)
      fail(ErrorKind::unsupported,
           "--speculate: layers of this model keep a state, which does not go back here where a draft is rejected; "
           "leave it out, or take `runner generate`");
}

// Drafts take rows and pages that are left when all else has its own; no sequence is sent away for them.
double Scheduler::add_drafts(std::vector<Planned>& planned) {
  const Stopwatch drafting;
  const ProcessorWatch processor;
  const int64_t steps = decoding();
  int64_t left = options_.budget;
  for (const Planned& p : planned) left -= p.rows;
  std::vector<DraftWish> wishes;
  std::vector<Planned*> whose;
  for (Planned& p : planned) {
    const Sequence& s = *p.sequence;
    const int64_t made = std::ssize(s.tokens) - std::ssize(s.request->prompt);
    if (s.left() != 1 || made < 1) continue;
    // The last token needs no draft behind it.
    int64_t most = std::min({options_.speculate.k, s.request->max_tokens - made - 1, left});
    while (options_.speculate.sparing && most > 0 && times_.cost(steps, most) > s.account.credit()) --most;
    if (most < 1) continue;
    wishes.push_back({.sequence = s.slot, .text = s.tokens, .most = most});
    whose.push_back(&p);
  }
  if (!wishes.empty()) drafter_.propose(wishes);
  for (size_t i = 0; i < wishes.size(); ++i) {
    const Sequence& s = *whose[i]->sequence;
    const int64_t n = std::ssize(wishes[i].ids);
    if (n == 0 || n > left || !engine_.cache().grow(s.slot, s.computed + 1 + n)) continue;
    left -= n;
    whose[i]->draft = std::move(wishes[i].ids);
    whose[i]->cost = times_.cost(steps, n);
  }
  counts_.drafting_s += drafting.seconds();
  return ex_.on_cuda() ? drafting.seconds() : processor.seconds();
}

// Every row is chosen from as if there were no draft; true: the sequence goes on.
bool Scheduler::judge_draft(const Planned& p, const PassResult& result, size_t first, const Tell& tell) {
  Sequence& s = *p.sequence;
  const int64_t n = std::ssize(p.draft);
  int64_t kept = 0;
  bool goes_on = true;
  for (bool agreed = true; agreed && goes_on;) {
    goes_on = choose(s, result.row(first + static_cast<size_t>(kept)), tell);
    agreed = kept < n && s.tokens.back() == p.draft[static_cast<size_t>(kept)];
    ++kept;
  }
  s.computed += kept;
  counts_.drafts.add(n, kept);
  s.account.settle(kept - 1, p.cost);
  // What was rejected is no part of the sequence.
  engine_.cache().set_length(s.slot, s.computed);
  engine_.cache().trim(s.slot, s.computed);
  share_blocks(s);
  engine_.cache().forget(s.slot);
  return goes_on;
}

}  // namespace fewbit
