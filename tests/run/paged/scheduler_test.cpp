// Requests that come and go, under page pressure: each output is that of the request alone.
#include "src/run/paged/scheduler.h"

#include <cstdlib>
#include <map>

#include "src/model/synth/synth.h"
#include "tests/run/demo.h"
#include "tests/run/paged/random_trace.h"
#include "tests/support/support.h"
#include "tests/support/tiny_families.h"

namespace fewbit::test {
namespace {

using Key = std::pair<int64_t, int64_t>;  // request, choice
using Outputs = std::map<Key, std::vector<int32_t>>;

PagedEngine engine_of(Exec& ex, int64_t pages) {
  return {ex, Checkpoint::open(demo()),
          PagedOptions{.load = {.dtype = DType::bf16}, .pages = pages, .sequences = 16, .longest = 160, .pass = 64}};
}

struct Served {
  Outputs outputs;
  SchedulerCounts counts;
  std::vector<int64_t> finished;  // ids, in the order in which they ended
};

Served serve(Exec& ex, PagedEngine& engine, const Trace& t, const SchedulerOptions& o, const BatchDrafter& d = {}) {
  Served s;
  Scheduler scheduler(ex, engine, o, d);
  drive(scheduler, t, [&](const ServedToken& token) {
    s.outputs[{token.request, token.choice}].push_back(token.token);
    if (token.finish != Finish::no) s.finished.push_back(token.request);
  });
  s.counts = scheduler.counts();
  if (scheduler.prefix()) {
    EXPECT_EQ(engine.cache().pages_held(), scheduler.prefix()->blocks());
    scheduler.prefix()->clear();
  }
  EXPECT_EQ(engine.cache().pages_held_in_all(), 0);
  return s;
}

Outputs alone(Exec& ex, PagedEngine& engine, const Trace& t) {
  Outputs all;
  for (const ServedRequest& r : t.requests) all.merge(serve(ex, engine, {{r}, {0}}, {.prefix_cache = false}).outputs);
  return all;
}
Outputs alone(Exec& ex, const Trace& t) {
  PagedEngine engine = engine_of(ex, 40);
  return alone(ex, engine, t);
}

// Drafts of the tokens that will come, of which every third is another one; now and then fewer than are asked for.
BatchDrafter drafter_of(const Trace& t, const Outputs& expected, uint64_t seed) {
  std::vector<std::vector<int32_t>> texts;
  for (const auto& [key, tokens] : expected) {
    texts.push_back(std::ranges::find(t.requests, key.first, &ServedRequest::id)->prompt);
    texts.back().insert(texts.back().end(), tokens.begin(), tokens.end());
  }
  const auto rng = std::make_shared<Rng>(seed, "drafts");
  return {.propose = [texts, rng](std::span<DraftWish> wishes) {
    for (DraftWish& w : wishes)
      for (const std::vector<int32_t>& text : texts) {
        if (text.size() <= w.text.size() || !std::ranges::equal(w.text, std::span(text).first(w.text.size()))) continue;
        const size_t most = std::min(text.size() - w.text.size(), static_cast<size_t>(w.most));
        w.ids.assign(text.begin() + std::ssize(w.text),
                     text.begin() + static_cast<std::ptrdiff_t>(w.text.size() + most));
        for (int32_t& id : w.ids)
          if (rng->below(3) == 0) id = static_cast<int32_t>(rng->below(100));
        if (rng->below(4) == 0) w.ids.resize(rng->below(most + 1));
        break;
      }
  }};
}

void equals_alone(Exec& ex, int64_t count, uint64_t seed) {
  const Trace t = random_trace(count, seed);
  const Outputs expected = alone(ex, t);
  Rng rng(seed, "options");
  SchedulerOptions o{.budget = static_cast<int64_t>(8 + rng.below(56)),
                     .running = static_cast<int64_t>(2 + rng.below(14)),
                     .prefix_cache = rng.below(4) > 0};
  PagedEngine engine = engine_of(ex, static_cast<int64_t>(8 + rng.below(3) * 6));
  const Served found = serve(ex, engine, t, o);
  EXPECT_EQ(found.outputs, expected) << "seed " << seed;
  for (const ServedRequest& r : t.requests)
    EXPECT_EQ(std::ssize(found.outputs.at({r.id, 0})), r.max_tokens) << "seed " << seed;
  o.speculate = {.kind = DraftKind::ngram, .k = static_cast<int64_t>(1 + rng.below(9)), .sparing = rng.below(2) == 0};
  const Served drafted = serve(ex, engine, t, o, drafter_of(t, expected, seed));
  EXPECT_EQ(drafted.outputs, expected) << "with drafts, seed " << seed;
  EXPECT_GT(drafted.counts.drafts.accepted_in_all(), 0) << "seed " << seed;
}

// FEWBIT_TEST_SEEDS=200 runs as many.
TEST(Scheduler, OutputsUnderPagePressureAreThoseOfEachRequestAlone) {
  Exec ex = Exec::cpu();
  const char* asked = std::getenv("FEWBIT_TEST_SEEDS");
  const int seeds = asked ? std::atoi(asked) : 3;
  for (int seed = 0; seed < seeds && !HasFailure(); ++seed)
    equals_alone(ex, seed == 0 ? 64 : 24, static_cast<uint64_t>(seed));
}

// All that is drafted is accepted but for tokens that were sampled; nothing is left in either cache.
TEST(Scheduler, ACpuIsBatchInvariantWithAndWithoutBeingAsked) {
  Exec ex = Exec::cpu();
  PagedEngine asked(ex, Checkpoint::open(demo()),
                    PagedOptions{.load = {.dtype = DType::bf16},
                                 .pages = 40,
                                 .sequences = 16,
                                 .longest = 160,
                                 .pass = 64,
                                 .batch_invariant = true});
  const Trace t = random_trace(12, 9);
  EXPECT_EQ(serve(ex, asked, t, {}).outputs, alone(ex, t));
}

TEST(Scheduler, ADraftModelLeavesTheTokens) {
  Exec ex = Exec::cpu();
  const Trace t = random_trace(20, 5);
  const Outputs expected = alone(ex, t);
  PagedEngine engine = engine_of(ex, 14);
  const auto with = [&](int64_t pages, bool sparing) {
    DraftEngine drafts(ex, Checkpoint::open(demo()),
                       {.load = {.dtype = DType::bf16}, .pages = pages, .sequences = 16, .longest = 160, .pass = 16},
                       engine.spec().vocab);
    const SpeculateOptions speculate{.kind = DraftKind::model, .k = 3, .sparing = sparing};
    const Served s = serve(ex, engine, t, {.budget = 40, .running = 6, .speculate = speculate}, drafts.drafter());
    EXPECT_EQ(s.outputs, expected) << pages;
    EXPECT_EQ(drafts.cache().pages_held_in_all(), 0);
    return s.counts.drafts;
  };
  const Acceptance all = with(60, false), some = with(8, false);
  EXPECT_GT(all.alpha(), .4);
  EXPECT_LT(some.drafts, all.drafts) << "who finds no page has no draft";
  with(60, true);
  Trace greedy = t;
  for (ServedRequest& r : greedy.requests) r.sampler = {};
  DraftEngine drafts(ex, Checkpoint::open(demo()), {.pages = 60, .sequences = 16, .longest = 160}, engine.spec().vocab);
  const Served s =
      serve(ex, engine, greedy, {.speculate = {.kind = DraftKind::model, .k = 3, .sparing = false}}, drafts.drafter());
  EXPECT_EQ(s.counts.drafts.alpha(), 1) << "a model agrees with itself";
}

TEST(Scheduler, PressurePreemptsAndTheSameTraceGivesTheSamePasses) {
  Exec ex = Exec::cpu();
  const Trace t = random_trace(32, 7);
  PagedEngine engine = engine_of(ex, 8);
  const Served a = serve(ex, engine, t, {.budget = 48, .running = 8});
  const Served b = serve(ex, engine, t, {.budget = 48, .running = 8});
  EXPECT_GT(a.counts.preemptions, 0);
  EXPECT_EQ(a.finished, b.finished);
  EXPECT_EQ(a.counts.passes, b.counts.passes);
  EXPECT_EQ(a.counts.rows, b.counts.rows);
}

// A long request in a cache that has room for little else is not starved by short ones that keep coming.
TEST(Scheduler, TheOldestGoesOn) {
  Exec ex = Exec::cpu();
  Trace t;
  t.requests.push_back({.id = 0, .prompt = random_ids(90, 1), .max_tokens = 20, .stop_at_eos = false});
  t.arrivals.push_back(2);
  for (int64_t i = 1; i < 40; ++i) {
    t.requests.push_back(
        {.id = i, .prompt = random_ids(20, static_cast<uint64_t>(i)), .max_tokens = 4, .stop_at_eos = false});
    t.arrivals.push_back(i < 3 ? 0 : i);
  }
  PagedEngine engine = engine_of(ex, 8);
  const Served s = serve(ex, engine, t, {.budget = 32, .running = 4});
  const auto place = std::ranges::find(s.finished, 0) - s.finished.begin();
  EXPECT_LE(place, 4);  // those before it, and what fitted beside it
}

TEST(Scheduler, RequestsThatShareABeginningWaitForThePageBeingFilled) {
  Exec ex = Exec::cpu();
  constexpr int64_t kShared = 100, kOwn = 9, kRequests = 12;
  const std::vector<int32_t> shared = random_ids(kShared, 21);
  Trace t;
  for (int64_t i = 0; i < kRequests; ++i) {
    ServedRequest r{.id = i, .prompt = shared, .max_tokens = 3, .stop_at_eos = false};
    const std::vector<int32_t> own = random_ids(kOwn, 100 + static_cast<uint64_t>(i));
    r.prompt.insert(r.prompt.end(), own.begin(), own.end());
    t.requests.push_back(std::move(r));
    t.arrivals.push_back(0);
  }
  PagedEngine engine = engine_of(ex, 40);
  const Served s = serve(ex, engine, t, {.budget = 40, .running = 16});
  EXPECT_LE(s.counts.prefilled, kShared + kRequests * (kOwn + kPagePositions));
  EXPECT_EQ(s.counts.shared_tokens, (kRequests - 1) * (kShared / kPagePositions * kPagePositions));
  EXPECT_EQ(s.outputs, alone(ex, t));
}

// 32 requests of 1,000 common tokens and 9 of their own, all at once and one after another.
TEST(Scheduler, ALongBeginningIsComputedOnce) {
  Exec ex = Exec::cpu();
  constexpr int64_t kShared = 1000, kOwn = 9, kRequests = 32, kNew = 3;
  const std::vector<int32_t> shared = random_ids(kShared, 22);
  Trace t;
  for (int64_t i = 0; i < kRequests; ++i) {
    ServedRequest r{.id = i, .prompt = shared, .max_tokens = kNew, .stop_at_eos = false};
    const std::vector<int32_t> own = random_ids(kOwn, 200 + static_cast<uint64_t>(i));
    r.prompt.insert(r.prompt.end(), own.begin(), own.end());
    t.requests.push_back(std::move(r));
    t.arrivals.push_back(0);
  }
  PagedEngine engine(ex, Checkpoint::open(demo()), {.pages = 192, .sequences = 32, .longest = kShared + kOwn + kNew});
  const Served together = serve(ex, engine, t, {});
  for (size_t i = 0; i < t.arrivals.size(); ++i) t.arrivals[i] = static_cast<int64_t>(i) * 8;
  const Served in_turn = serve(ex, engine, t, {});
  for (const SchedulerCounts& c : {together.counts, in_turn.counts}) {
    EXPECT_LE(c.prefilled, kShared + kRequests * (kOwn + kPagePositions));
    EXPECT_EQ(c.prefilled, kShared + kOwn + (kRequests - 1) * (kShared % kPagePositions + kOwn));
    EXPECT_EQ(c.shared_tokens, (kRequests - 1) * (kShared / kPagePositions * kPagePositions));
    EXPECT_EQ(c.preemptions, 0);
  }
  EXPECT_EQ(together.outputs, in_turn.outputs);
  for (const auto& [key, tokens] : alone(ex, engine, {{t.requests.back()}, {0}}))
    EXPECT_EQ(together.outputs.at(key), tokens);
}

TEST(Scheduler, AnEvictedBeginningIsComputedAgain) {
  Exec ex = Exec::cpu();
  PagedEngine engine = engine_of(ex, 14);
  Scheduler scheduler(ex, engine, {.budget = 64});
  const auto run = [&](int64_t id, uint64_t seed) {
    std::vector<int32_t> out;
    scheduler.submit({.id = id, .prompt = random_ids(100, seed), .max_tokens = 4, .stop_at_eos = false});
    while (!scheduler.idle()) scheduler.step([&](const ServedToken& t) { out.push_back(t.token); });
    return out;
  };
  const std::vector<int32_t> first = run(0, 1);
  EXPECT_EQ(run(1, 1), first);
  EXPECT_EQ(scheduler.counts().shared_tokens, 96);
  run(2, 2);
  run(3, 3);
  EXPECT_GT(scheduler.prefix()->evicted(), 0);
  EXPECT_EQ(run(4, 1), first);
  scheduler.prefix()->clear();
  EXPECT_EQ(engine.cache().pages_held_in_all(), 0);
}

// Beginnings are shared by layers with windows too, whose pages go when nobody sees them.
TEST(Scheduler, LayersWithWindowsShareBeginningsToo) {
  Exec ex = Exec::cpu();
  const TempDir dir;
  SynthOptions model;
  model.config = tiny_config_of("Gemma3ForCausalLM").dump();
  synthesize(dir / "m", model, {});
  const Checkpoint c = Checkpoint::open(dir / "m");
  const auto engine = [&](int64_t pages) {
    return PagedEngine(ex, c, {.pages = pages, .sequences = 4, .longest = 160, .pass = 64});
  };
  Trace t = random_trace(24, 3);
  for (ServedRequest& r : t.requests)
    for (int32_t& id : r.prompt) id %= static_cast<int32_t>(c.spec.vocab);
  PagedEngine large = engine(40), small = engine(8);
  const Outputs expected = alone(ex, large, t);
  const Served found = serve(ex, small, t, {.budget = 48});
  EXPECT_EQ(found.outputs, expected);
  EXPECT_GT(found.counts.shared_tokens, 0);
  const SchedulerOptions drafts{.budget = 48, .speculate = {.kind = DraftKind::ngram, .k = 5, .sparing = false}};
  EXPECT_EQ(serve(ex, small, t, drafts, drafter_of(t, expected, 3)).outputs, expected);
  DraftEngine further(ex, c, {.pages = 40, .sequences = 4, .longest = 160, .pass = 64}, c.spec.vocab);
  EXPECT_EQ(serve(ex, small, t, drafts, further.drafter()).outputs, expected);
}

TEST(Scheduler, ACancelledRequestFreesItsPages) {
  Exec ex = Exec::cpu();
  PagedEngine engine = engine_of(ex, 40);
  Scheduler scheduler(ex, engine, {.prefix_cache = false});
  for (int64_t i = 0; i < 3; ++i)
    scheduler.submit({.id = i, .prompt = random_ids(50, 1), .max_tokens = 20, .choices = 2, .stop_at_eos = false});
  for (int i = 0; i < 4; ++i) scheduler.step([](const ServedToken&) {});
  EXPECT_GT(engine.cache().pages_held(), 0);
  for (int64_t i = 0; i < 3; ++i) EXPECT_TRUE(scheduler.cancel(i));
  EXPECT_FALSE(scheduler.cancel(0));
  EXPECT_TRUE(scheduler.idle());
  EXPECT_EQ(engine.cache().pages_held_in_all(), 0);
}

TEST(Scheduler, PromptLogitsComeOnceForEveryPosition) {
  Exec ex = Exec::cpu();
  PagedEngine engine = engine_of(ex, 40);
  Scheduler scheduler(ex, engine, {.budget = 20});
  const ServedRequest r{.id = 5, .prompt = random_ids(50, 1), .max_tokens = 0, .prompt_logits = true};
  std::vector<int64_t> positions;
  scheduler.submit(r);
  bool ended = false;
  while (!scheduler.idle())
    scheduler.step([&](const ServedToken& t) {
      EXPECT_EQ(t.token, -1);
      EXPECT_EQ(std::ssize(t.logits), 4096);
      t.finish == Finish::no ? positions.push_back(t.position) : void(ended = true);
    });
  EXPECT_TRUE(ended);
  ASSERT_EQ(positions.size(), 49u);
  for (int64_t i = 0; i < 49; ++i) EXPECT_EQ(positions[static_cast<size_t>(i)], i);
}

TEST(Scheduler, RefusesWhatNeverFits) {
  Exec ex = Exec::cpu();
  PagedEngine engine = engine_of(ex, 8);
  Scheduler scheduler(ex, engine, {});
  EXPECT_EQ(scheduler.refuses({.prompt = random_ids(100, 1), .max_tokens = 28}), "");
  EXPECT_NE(scheduler.refuses({.prompt = random_ids(100, 1), .max_tokens = 29}).find("128 positions"),
            std::string::npos);
  EXPECT_NE(scheduler.refuses({.prompt = {1, 5000}}).find("token 5000"), std::string::npos);
  EXPECT_NE(scheduler.refuses({}).find("no tokens"), std::string::npos);
}

}  // namespace
}  // namespace fewbit::test
