// Many sequences over pages on a GPU: against the engine with one length for all, against the CPU, and requests under
// page pressure against each request alone, up to the first position where the two best logits are nearly alike.
#include <algorithm>
#include <map>

#include "src/model/synth/synth.h"
#include "src/run/engine.h"
#include "src/run/paged/scheduler.h"
#include "tests/run/demo.h"
#include "tests/run/paged/random_trace.h"
#include "tests/support/support.h"
#include "tests/support/tiny_families.h"
#include "tests/support/tolerance.h"

namespace fewbit::test {
namespace {

// Logits of every one of the ids, fed in pieces of `piece`, on the host.
Tensor logits_of(Exec& ex, PagedEngine& engine, const std::vector<int32_t>& ids, int64_t piece) {
  PagedCache& cache = engine.cache();
  const int sequence = cache.begin();
  const Tensor all = Tensor::host(DType::f32, {std::ssize(ids), engine.spec().vocab});
  for (int64_t at = 0; at < std::ssize(ids); at += piece) {
    const int64_t n = std::min(piece, std::ssize(ids) - at);
    EXPECT_TRUE(cache.grow(sequence, at + n));
    const NewTokens work{sequence, {ids.data() + at, static_cast<size_t>(n)}, 0};
    ex.copy(engine.pass({&work, 1}), all.view().row_range(at, at + n));
    cache.forget(sequence);
  }
  cache.end(sequence);
  EXPECT_EQ(cache.pages_held_in_all(), 0);
  return clone_host(all);
}

double logits_tolerance(DType dtype, KvType kv) {
  const bool coarse = kv == KvType::int4, codes = kv != KvType::plain;
  if (dtype == DType::f32) return coarse ? tol::kLogitsInt4Cache : codes ? tol::kLogitsQuantizedCache : tol::kLogitsF32;
  return coarse ? tol::kLogitsInt4CacheBf16 : codes ? tol::kLogitsQuantizedCacheBf16 : tol::kLogitsBf16;
}

TEST(PagedEngine, CudaLogitsAreThoseOfTheEngine) {
  FEWBIT_NEEDS_GPU();
  Exec ex = Exec::cuda(0);
  const Checkpoint c = Checkpoint::open(demo());
  const std::vector<int32_t> ids = random_ids(137, 11);
  for (const DType dtype : {DType::f32, DType::bf16})
    for (const KvType kv : {KvType::plain, KvType::fp8, KvType::fp8_plain, KvType::int8, KvType::int4}) {
      const LoadOptions load{.dtype = dtype, .kv_cache = kv};
      Engine engine(ex, c, {.load = load, .capacity = 160});
      const Tensor expected = Tensor::host(DType::f32, {std::ssize(ids), c.spec.vocab});
      for (int64_t i = 0; i < std::ssize(ids); ++i) {
        const std::span<const int32_t> next(ids.data() + i, 1);
        ex.copy(i == 0 ? engine.prefill(next)
                       : engine.decode(ex.to_device(Tensor::host_from<int32_t>(DType::i32, {1}, next))),
                expected.view().row_range(i, i + 1));
      }
      PagedEngine paged(ex, c, {.load = load, .pages = 12, .sequences = 2, .longest = 160, .pass = 128});
      for (const int64_t piece : {1, 7, 40, 128})
        EXPECT_LE(relative_error(logits_of(ex, paged, ids, piece), expected), logits_tolerance(dtype, kv))
            << name_of(dtype) << ", " << name_of(kv) << ", pieces of " << piece;
    }
}

// Three sequences mixed in every pass, on the GPU and on the CPU.
void mixed_like_the_cpu(const Checkpoint& c, const LoadOptions& load, double tolerance, const std::string& what) {
  Exec gpu = Exec::cuda(0), cpu = Exec::cpu();
  const PagedOptions options{.load = load, .pages = 24, .sequences = 4, .longest = 96, .pass = 96};
  PagedEngine found(gpu, c, options), reference(cpu, c, options);
  const std::vector<int64_t> lengths = {80, 7, 41};
  std::vector<std::vector<int32_t>> ids;
  for (const int64_t n : lengths)
    for (int32_t& id : ids.emplace_back(random_ids(n, static_cast<uint64_t>(n))))
      id %= static_cast<int32_t>(c.spec.vocab);
  for (int s = 0; s < 3; ++s) EXPECT_EQ(found.cache().begin(), reference.cache().begin());
  std::vector<int64_t> done(3, 0);
  Rng rng(5, "cuts");
  double worst = 0;
  while (done != lengths) {
    std::vector<NewTokens> work;
    for (const int s : {2, 0, 1}) {
      const auto i = static_cast<size_t>(s);
      const int64_t n = std::min<int64_t>(static_cast<int64_t>(1 + rng.below(30)), lengths[i] - done[i]);
      if (n == 0) continue;
      for (PagedEngine* e : {&found, &reference}) ASSERT_TRUE(e->cache().grow(s, done[i] + n));
      work.push_back({s, {ids[i].data() + done[i], static_cast<size_t>(n)}, 0});
      done[i] += n;
    }
    const Tensor here = gpu.to_host(found.pass(work));
    worst = std::max(worst, relative_error(here, reference.pass(work)));
    for (const NewTokens& w : work)
      for (PagedEngine* e : {&found, &reference}) e->cache().forget(w.sequence);
  }
  EXPECT_LE(worst, tolerance) << what;
  for (int s = 0; s < 3; ++s) found.cache().end(s);
  EXPECT_EQ(found.cache().pages_held_in_all(), 0) << what;
}

// Windows, sinks, chunks, experts, keys of other layers, norms of heads.
TEST(PagedEngine, CudaTakesEveryKindOfAttention) {
  FEWBIT_NEEDS_GPU();
  const TempDir dir;
  for (const char* family : {"Gemma3ForCausalLM", "GptOssForCausalLM", "Llama4ForConditionalGeneration",
                             "Gemma4ForConditionalGeneration", "Qwen3ForCausalLM"}) {
    SynthOptions o;
    o.config = tiny_config_of(family).dump();
    synthesize(dir / family, o, {});
    mixed_like_the_cpu(Checkpoint::open(dir / family), {.dtype = DType::f32}, tol::kLogitsF32, family);
  }
  mixed_like_the_cpu(Checkpoint::open(demo()), {.dtype = DType::bf16}, tol::kLogitsBf16, "demo");
}

TEST(PagedEngine, CudaSaysWhatItDoesNotTake) {
  FEWBIT_NEEDS_GPU();
  Exec ex = Exec::cuda(0);
  const TempDir dir;
  for (const auto& [family, what] :
       {std::pair{"DeepseekV3ForCausalLM", "latents"}, {"Qwen3NextForCausalLM", "a state"}}) {
    SynthOptions o;
    o.config = tiny_config_of(family).dump();
    synthesize(dir / family, o, {});
    try {
      const PagedEngine engine(ex, Checkpoint::open(dir / family), PagedOptions{.pages = 4});
      ADD_FAILURE() << family;
    } catch (const Error& e) {
      EXPECT_EQ(e.kind(), ErrorKind::unsupported);
      EXPECT_NE(std::string(e.what()).find(what), std::string::npos) << e.what();
    }
  }
}

struct Token {
  int32_t id;
  float lead;  // of its logit before the next best
};
using Texts = std::map<int64_t, std::vector<Token>>;

constexpr TraceShape kGreedy{.tokens = 24, .own = 60, .greedy = true};

Texts serve(Exec& ex, PagedEngine& engine, Trace t, const SchedulerOptions& o, bool with_leads,
            SchedulerCounts* counts = nullptr) {
  Texts texts;
  Scheduler scheduler(ex, engine, o, ngram_batch_drafter());
  for (ServedRequest& r : t.requests) r.logits = with_leads;
  drive(scheduler, t, [&](const ServedToken& token) {
    float lead = 0;
    if (with_leads) {
      std::vector<float> sorted(token.logits.begin(), token.logits.end());
      std::ranges::partial_sort(sorted, sorted.begin() + 2, std::greater<>{});
      lead = sorted[0] - sorted[1];
    }
    texts[token.request].push_back({token.token, lead});
  });
  if (counts) *counts = scheduler.counts();
  if (scheduler.prefix()) scheduler.prefix()->clear();
  EXPECT_EQ(engine.cache().pages_held_in_all(), 0);
  return texts;
}

Texts alone(Exec& ex, PagedEngine& engine, const Trace& t) {
  Texts all;
  for (const ServedRequest& r : t.requests) all.merge(serve(ex, engine, {{r}, {0}}, {.prefix_cache = false}, true));
  return all;
}

// Texts are the same up to where the lead of the token that the request alone has is a near tie.
void same_up_to_near_ties(const Texts& found, const Texts& expected, float near_tie, const std::string& what) {
  int64_t compared = 0, all = 0;
  for (const auto& [id, tokens] : expected) {
    const std::vector<Token>& other = found.at(id);
    ASSERT_EQ(other.size(), tokens.size());
    all += std::ssize(tokens);
    for (size_t i = 0; i < tokens.size(); ++i, ++compared) {
      if (other[i].id == tokens[i].id) continue;
      EXPECT_LT(tokens[i].lead, near_tie) << what << ", request " << id << ", token " << i;
      break;
    }
  }
  EXPECT_GT(compared, all / 2) << what << ": too few positions before a near tie to say anything";
}

PagedOptions options_of(int64_t pages, KvType kv, bool invariant) {
  return {.load = {.dtype = DType::bf16, .kv_cache = kv},
          .pages = pages,
          .sequences = 16,
          .longest = 160,
          .pass = 64,
          .batch_invariant = invariant};
}

TEST(Scheduler, CudaOutputsUnderPagePressureAreThoseOfEachRequestAlone) {
  FEWBIT_NEEDS_GPU();
  Exec ex = Exec::cuda(0);
  const Checkpoint c = Checkpoint::open(demo());
  for (const KvType kv : {KvType::plain, KvType::fp8, KvType::int8, KvType::int4})
    for (uint64_t seed = 0; seed < 3; ++seed) {
      Trace t = random_trace(seed == 0 ? 48 : 24, seed, kGreedy);
      if (seed > 0) std::ranges::fill(t.arrivals, 0);
      // Few pages; then many, and as many sequences as there are, whose number falls from step to step.
      PagedEngine solo(ex, c, options_of(40, kv, false)), engine(ex, c, options_of(seed == 0 ? 10 : 100, kv, false));
      const Texts expected = alone(ex, solo, t);
      SchedulerCounts counts;
      const std::string what = std::string(name_of(kv)) + ", seed " + std::to_string(seed);
      for (const int64_t k : {0, 4}) {
        const SchedulerOptions o{
            .budget = 48, .running = 16, .speculate = {.kind = DraftKind::ngram, .k = k, .sparing = false}};
        same_up_to_near_ties(serve(ex, engine, t, o, k > 0, &counts), expected,
                             kv == KvType::int4 ? tol::kNearTieInt4Cache : tol::kNearTie, what);
        EXPECT_TRUE(seed > 0 || counts.preemptions > 0) << what;
      }
    }
}

// With every slice of one length, all tokens are the same.
TEST(Scheduler, CudaBatchInvariantOutputsAreExactlyThoseOfEachRequestAlone) {
  FEWBIT_NEEDS_GPU();
  Exec ex = Exec::cuda(0);
  const TempDir dir;
  synthesize(dir / "packed", {.preset = "tiny", .format = "marlin"}, {});
  for (const bool packed : {false, true}) {
    const Checkpoint c = Checkpoint::open(packed ? dir / "packed" : demo());
    for (const KvType kv : {KvType::plain, KvType::fp8, KvType::int4}) {
      Trace t = random_trace(24, 3, kGreedy);
      for (ServedRequest& r : t.requests)
        for (int32_t& id : r.prompt) id %= static_cast<int32_t>(c.spec.vocab);
      PagedEngine solo(ex, c, options_of(40, kv, true)), engine(ex, c, options_of(10, kv, true));
      const Texts expected = alone(ex, solo, t), found = serve(ex, engine, t, {.budget = 48, .running = 12}, true);
      for (const auto& [id, tokens] : expected)
        for (size_t i = 0; i < tokens.size(); ++i) {
          ASSERT_EQ(found.at(id)[i].id, tokens[i].id) << name_of(kv) << ", request " << id << ", token " << i;
          ASSERT_EQ(found.at(id)[i].lead, tokens[i].lead) << name_of(kv) << ", request " << id << ", token " << i;
        }
    }
  }
}

// A recorded step does what the launches do.
TEST(PagedEngine, CudaRecordedStepsHaveTheBitsOfLaunches) {
  FEWBIT_NEEDS_GPU();
  Exec ex = Exec::cuda(0);
  const Checkpoint c = Checkpoint::open(demo());
  PagedOptions o = options_of(60, KvType::plain, false);
  o.pass = 160;
  Trace t;  // eight at once, so that no recording has rows that are none
  for (int64_t i = 0; i < 8; ++i) {
    t.requests.push_back(
        {.id = i, .prompt = random_ids(20, static_cast<uint64_t>(i)), .max_tokens = 24, .stop_at_eos = false});
    t.arrivals.push_back(0);
  }
  const auto texts = [&](bool graph) {
    o.graph = graph;
    PagedEngine engine(ex, c, o);
    return serve(ex, engine, t, {.budget = 160, .running = 8}, true);
  };
  const Texts recorded = texts(true), launched = texts(false);
  for (const auto& [id, tokens] : launched)
    for (size_t i = 0; i < tokens.size(); ++i) {
      EXPECT_EQ(recorded.at(id)[i].id, tokens[i].id);
      EXPECT_EQ(recorded.at(id)[i].lead, tokens[i].lead);
    }
}

// Who appends to a page that others hold too gets a copy, on the device.
TEST(PagedCache, CudaCopiesASharedPage) {
  FEWBIT_NEEDS_GPU();
  Exec ex = Exec::cuda(0);
  const Checkpoint c = Checkpoint::open(demo());
  for (const KvType kv : {KvType::plain, KvType::int8, KvType::int4}) {
    PagedEngine engine(ex, c,
                       {.load = {.dtype = DType::bf16, .kv_cache = kv}, .pages = 8, .sequences = 3, .longest = 64});
    PagedCache& cache = engine.cache();
    const std::vector<int32_t> ids = random_ids(30, 3), others = random_ids(9, 4);
    const auto feed = [&](int s, std::span<const int32_t> tokens) {
      EXPECT_TRUE(cache.grow(s, cache.length(s) + std::ssize(tokens)));
      const NewTokens work{s, tokens, 0};
      return ex.to_host(engine.pass({&work, 1}));
    };
    const int parent = cache.begin();
    feed(parent, {ids.data(), 21});
    const int child = cache.fork(parent);
    feed(child, others);  // into the parent's half full page
    EXPECT_EQ(cache.pages_held(), 3);
    const Tensor after = feed(parent, {ids.data() + 21, 9});
    cache.end(child);
    cache.end(parent);
    const Tensor whole = logits_of(ex, engine, ids, 30);
    EXPECT_LE(relative_error(after, whole.view().row_range(21, 30)), logits_tolerance(DType::bf16, kv)) << name_of(kv);
  }
}

}  // namespace
}  // namespace fewbit::test
