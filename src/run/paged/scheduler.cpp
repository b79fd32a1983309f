// Plans a pass by age, runs it, and hands out what came of it.
#include "src/run/paged/scheduler.h"

#include <fmt/format.h>

#include <algorithm>

#include "src/core/processor_watch.h"
#include "src/core/stopwatch.h"

namespace fewbit {

Scheduler::Scheduler(Exec& ex, PagedEngine& engine, const SchedulerOptions& o, BatchDrafter drafter)
    : ex_(ex), engine_(engine), options_(o), drafter_(std::move(drafter)) {
  options_.budget = std::min(o.budget, engine.options().pass);
  options_.running = std::min(o.running, engine.options().sequences);
  FEWBIT_ASSERT(options_.budget > 0 && options_.running > 0);
  FEWBIT_ASSERT(o.speculate.k == 0 || (drafter_.propose && !engine.cache().has_states()));
  // A state is of one position only: it cannot be shared by those that go on from an earlier one.
  if (o.prefix_cache && !engine.cache().has_states()) prefix_ = std::make_unique<PrefixCache>(engine.cache());
}

Scheduler::~Scheduler() {
  for (auto s = running_.begin(); s != running_.end(); ++s) leave(s);
}

std::string Scheduler::refuses(const ServedRequest& r) const {
  const ModelSpec& spec = engine_.spec();
  if (r.prompt.empty()) return "the prompt has no tokens";
  for (const int32_t id : r.prompt)
    if (id < 0 || id >= spec.vocab)
      return fmt::format("token {} of the prompt is outside the vocabulary [0, {})", id, spec.vocab);
  if (r.choices < 1 || r.max_tokens < 0) return "at least one choice, and no negative number of tokens";
  const int64_t length = std::ssize(r.prompt) + r.max_tokens;
  const int64_t most = std::min(engine_.options().longest, engine_.cache().most_positions());
  if (length > most)
    return fmt::format(
        "{} tokens of the prompt and {} new ones are more than the {} positions that a sequence may have",
        r.prompt.size(), r.max_tokens, most);
  return "";
}

void Scheduler::submit(ServedRequest r) {
  FEWBIT_ASSERT(refuses(r).empty());
  Sequence s;
  s.tokens = r.prompt;
  s.hashes = PrefixCache::hashes(s.tokens);
  s.order = orders_++;
  s.account = DraftAccount(first_credit(options_.speculate));
  s.request = std::make_shared<const ServedRequest>(std::move(r));
  waiting_.push_back(std::move(s));
}

bool Scheduler::cancel(int64_t id, int64_t choice) {
  const auto is_it = [=](const Sequence& s) { return s.request->id == id && (choice < 0 || s.choice == choice); };
  bool found = waiting_.remove_if(is_it) > 0;
  for (auto s = running_.begin(); s != running_.end();) {
    const auto here = s++;
    if (!is_it(*here)) continue;
    leave(here);
    running_.erase(here);
    found = true;
  }
  return found;
}

// Moves `what` of `from` to its place by age in `list`.
void Scheduler::insert(List& list, List::iterator what, List& from) {
  const auto place = std::ranges::find_if(list, [&](const Sequence& s) { return before(*what, s); });
  list.splice(place, from, what);
}

void Scheduler::promise(const Sequence& s) {
  for (size_t b = static_cast<size_t>(s.computed / kPagePositions); prefix_ && b < s.hashes.size(); ++b)
    if (!prefix_->has(s.hashes[b])) promised_.try_emplace(s.hashes[b], &s);
}

void Scheduler::withdraw(const Sequence& s) {
  std::erase_if(promised_, [&](const auto& p) { return p.second == &s; });
}

bool Scheduler::waits_for_a_page(const Sequence& s) const {
  if (!prefix_ || s.request->prompt_logits || s.passed_over >= options_.passes_over) return false;
  for (const uint64_t hash : s.hashes)
    if (!prefix_->has(hash)) return promised_.contains(hash);
  return false;
}

void Scheduler::leave(List::iterator s) {
  withdraw(*s);
  if (prefix_) prefix_->touch(std::span(s->hashes).first(static_cast<size_t>(s->shared_blocks)));
  if (drafter_.forget) drafter_.forget(s->slot);
  engine_.cache().end(s->slot);
  s->slot = -1;
  s->computed = s->shared_blocks = 0;
}

void Scheduler::preempt(List::iterator s) {
  ++counts_.preemptions;
  leave(s);
  insert(waiting_, s, running_);
}

// Pages up to `length`, at the cost of younger ones. False where those do not suffice.
bool Scheduler::make_room(List::iterator s, int64_t length) {
  while (!engine_.cache().grow(s->slot, length)) {
    const auto youngest = std::prev(running_.end());
    if (youngest == s) return false;
    preempt(youngest);
  }
  return true;
}

// By age; what decode steps need of the budget is set aside first. Those that were given up to make room are the
// youngest, and so behind all that are planned.
std::vector<Scheduler::Planned> Scheduler::plan() {
  std::vector<Planned> planned;
  const int64_t before = counts_.preemptions;
  int64_t left = std::max<int64_t>(0, options_.budget - decoding());
  for (auto s = running_.begin(); s != running_.end();) {
    const auto here = s;
    const bool step = here->left() == 1;
    const int64_t rows = step ? 1 : std::min(here->left(), left);
    if (rows > 0 && !make_room(here, here->computed + rows)) {
      preempt(here);  // the youngest of all: the end of the list
      break;
    }
    s = std::next(here);  // behind it some may have gone
    if (rows == 0) continue;
    if (!step) left -= rows;
    planned.push_back({here, rows});
  }
  if (counts_.preemptions > before) return planned;  // there is room for none besides
  for (auto s = waiting_.begin(); s != waiting_.end() && left > 0 && running() < options_.running;) {
    const auto here = s++;
    if (waits_for_a_page(*here)) {
      ++here->passed_over;
      continue;
    }
    if (!admit(here, left, planned)) break;
    left -= planned.back().rows;
  }
  return planned;
}

int64_t Scheduler::decoding() const {
  return std::ranges::count_if(running_, [](const Sequence& s) { return s.left() == 1; });
}

// A page for every running sequence is left, so that the next steps do not send the new one away again.
bool Scheduler::admit(List::iterator s, int64_t budget, std::vector<Planned>& planned) {
  PagedCache& cache = engine_.cache();
  s->slot = cache.begin();
  if (s->slot < 0) return false;
  s->hashes = PrefixCache::hashes(s->tokens);
  const int64_t total = std::ssize(s->tokens);
  if (prefix_ && !s->request->prompt_logits) s->computed = prefix_->adopt(s->slot, s->tokens, s->hashes, total - 1);
  const int64_t rows = std::min(s->left(), budget);
  const int64_t spare = running_.empty() ? 0 : running() * kPagePositions;
  if (!cache.grow(s->slot, s->computed + rows + spare)) {
    cache.end(s->slot);
    s->slot = -1;
    s->computed = 0;
    return false;
  }
  cache.trim(s->slot, s->computed + rows);
  counts_.prompt_tokens += total;
  counts_.shared_tokens += s->computed;
  s->shared_blocks = s->computed / kPagePositions;
  promise(*s);
  insert(running_, s, waiting_);
  planned.push_back({s, rows});
  return true;
}

void Scheduler::share_blocks(Sequence& s) {
  if (!prefix_) return;
  if (std::ssize(s.hashes) < s.computed / kPagePositions) s.hashes = PrefixCache::hashes(s.tokens);
  for (; s.shared_blocks < s.computed / kPagePositions; ++s.shared_blocks) {
    prefix_->add(s.slot, s.tokens, s.hashes, s.shared_blocks);
    promised_.erase(s.hashes[static_cast<size_t>(s.shared_blocks)]);
  }
}

bool Scheduler::choose(Sequence& s, const PassRow& row, const Tell& tell) {
  const ServedRequest& r = *s.request;
  const int64_t position = std::ssize(s.tokens);
  ServedToken t{.request = r.id, .choice = s.choice, .position = position, .logits = row.logits};
  if (r.max_tokens == 0) {
    t.finish = Finish::length;
    tell(t);
    return false;
  }
  t.token = row.logits.empty() ? row.likeliest : sample(row.logits, r.sampler, s.choice, position);
  s.tokens.push_back(t.token);
  ++counts_.decoded;
  const std::vector<int64_t>& eos = engine_.spec().eos;
  if (r.stop_at_eos && std::ranges::find(eos, t.token) != eos.end())
    t.finish = Finish::stop;
  else if (std::ssize(s.tokens) - std::ssize(r.prompt) == r.max_tokens)
    t.finish = Finish::length;
  tell(t);
  return t.finish == Finish::no;
}

// The other continuations of a prompt, from the same logits: they share its pages where the cache has room for them
// now, else they wait.
void Scheduler::fork(List::iterator parent, const PassRow& row, const Tell& tell) {
  parent->forked = true;
  for (int64_t choice = 1; choice < parent->request->choices; ++choice) {
    Sequence child;
    child.request = parent->request;
    child.order = parent->order;
    child.choice = choice;
    child.tokens = parent->request->prompt;
    child.forked = true;
    child.account = parent->account;
    if (!choose(child, row, tell)) continue;
    if (running() < options_.running) child.slot = engine_.cache().fork(parent->slot);
    List one;
    const bool runs = child.slot >= 0;
    if (runs)
      child.computed = parent->computed, child.shared_blocks = parent->shared_blocks, child.hashes = parent->hashes;
    one.push_back(std::move(child));
    insert(runs ? running_ : waiting_, one.begin(), one);
  }
}

void Scheduler::after_pass(const std::vector<Planned>& planned, const PassResult& result, const Tell& tell) {
  size_t row = 0;
  const auto next_row = [&] { return result.row(row++); };
  for (const Planned& p : planned) {
    if (!p.draft.empty()) {
      const bool goes_on = judge_draft(p, result, row, tell);
      row += 1 + p.draft.size();
      if (goes_on) continue;
      leave(p.sequence);
      running_.erase(p.sequence);
      continue;
    }
    Sequence& s = *p.sequence;
    const int64_t first = s.computed, prompt = std::ssize(s.request->prompt);
    s.computed += p.rows;
    share_blocks(s);
    engine_.cache().forget(s.slot);
    PassRow last;
    if (s.request->prompt_logits && s.told < prompt) {
      for (int64_t at = first; at < s.computed; ++at) {
        last = next_row();
        if (at < s.told || at + 1 >= prompt) continue;
        s.told = at + 1;
        tell({.request = s.request->id, .choice = s.choice, .position = at, .logits = last.logits});
      }
      if (s.computed >= prompt) s.told = prompt;
    } else if (s.left() == 0) {
      last = next_row();
    }
    if (s.left() > 0) continue;
    if (!s.forked) fork(p.sequence, last, tell);
    if (choose(s, last, tell)) continue;
    leave(p.sequence);
    running_.erase(p.sequence);
  }
}

void Scheduler::step(const Tell& tell) {
  const Stopwatch planning;
  std::vector<Planned> planned = plan();
  const int64_t rows_before = counts_.rows;
  bool prompts = false, drafted = false;
  const double drafting = options_.speculate.k > 0 ? add_drafts(planned) : 0;
  std::vector<NewTokens> work;
  std::vector<uint8_t> logits;  // by row of the result: whether they are to be on the host
  for (const Planned& p : planned) {
    Sequence& s = *p.sequence;
    const bool all = !p.draft.empty() || (s.request->prompt_logits && s.told < std::ssize(s.request->prompt));
    const bool last = s.left() == p.rows;
    const ServedRequest& r = *s.request;
    logits.resize(logits.size() + (all    ? static_cast<size_t>(p.rows) + p.draft.size()
                                   : last ? 1
                                          : 0),
                  r.logits || r.prompt_logits || r.sampler.temperature > 0);
    counts_.rows += p.rows + std::ssize(p.draft);
    if (s.computed + 1 < std::ssize(s.tokens) || std::ssize(s.tokens) == std::ssize(s.request->prompt)) {
      counts_.prefilled += p.rows;
      prompts = true;
    }
    s.tokens.insert(s.tokens.end(), p.draft.begin(), p.draft.end());  // until the pass is over
    drafted = drafted || !p.draft.empty();
    work.push_back({s.slot,
                    {s.tokens.data() + s.computed, static_cast<size_t>(p.rows) + p.draft.size()},
                    all    ? 0
                    : last ? p.rows - 1
                           : -1});
  }
  counts_.planning_s += planning.seconds();
  if (work.empty()) return;
  ++counts_.passes;
  const Stopwatch engine;
  const ProcessorWatch processor;
  engine_.pass(work);
  const PassResult result = engine_.result(logits);
  counts_.engine_s += engine.seconds();
  // A GPU's time is none of the processor's.
  const double seconds = ex_.on_cuda() ? engine.seconds() : processor.seconds();
  if (!prompts) times_.add(counts_.rows - rows_before, seconds + drafting, drafted);
  const Stopwatch choosing;
  for (const Planned& p : planned) p.sequence->tokens.resize(p.sequence->tokens.size() - p.draft.size());
  after_pass(planned, result, tell);
  counts_.choosing_s += choosing.seconds();
}

}  // namespace fewbit
