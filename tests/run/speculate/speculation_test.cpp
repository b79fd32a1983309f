// Drafts: what is proposed, that outputs do not depend on it, the distribution of what is kept, and the report.
#include "src/run/speculate/speculation.h"

#include <array>
#include <cmath>

#include "src/model/synth/synth.h"
#include "src/run/engine.h"
#include "src/run/speculate/draft_model.h"
#include "src/run/speculate/ngram_draft.h"
#include "src/run/speculate/speculative.h"
#include "tests/run/demo.h"
#include "tests/support/support.h"
#include "tests/support/tiny_families.h"
#include "tests/support/tolerance.h"

namespace fewbit::test {
namespace {

using Ids = std::vector<int32_t>;

TEST(Speculation, AnNgramDraftIsWhatFollowedTheLongestAndLatestMatch) {
  EXPECT_EQ(ngram_draft(Ids{}, 4), Ids{});
  EXPECT_EQ(ngram_draft(Ids{7, 8, 9}, 4), Ids{});
  EXPECT_EQ(ngram_draft(Ids{5, 1, 6, 5, 1}, 4), Ids{}) << "two tokens are no match";
  EXPECT_EQ(ngram_draft(Ids{1, 2, 3, 4, 9, 1, 2, 3}, 1), Ids{4});
  EXPECT_EQ(ngram_draft(Ids{1, 2, 3, 4, 9, 1, 2, 3}, 7), (Ids{4, 9, 1})) << "three tokens agree: three are proposed";
  EXPECT_EQ(ngram_draft(Ids{1, 2, 3, 7, 1, 2, 3, 4, 1, 2, 3}, 1), Ids{4}) << "the latest of two as long";
  EXPECT_EQ(ngram_draft(Ids{0, 1, 2, 3, 8, 1, 2, 3, 4, 0, 1, 2, 3}, 2), (Ids{8, 1})) << "the longer one";
  EXPECT_EQ(ngram_draft(Ids{4, 5, 4, 5, 4, 5}, 4), (Ids{4, 5, 4, 5})) << "a piece shorter than the draft goes on";
}

TEST(Speculation, WhatIsAskedFor) {
  EXPECT_EQ(speculate_from("off").k, 0);
  EXPECT_EQ(speculate_from("ngram").k, kDraftTokens);
  EXPECT_EQ(speculate_from("ngram:3").k, 3);
  EXPECT_EQ(speculate_from("draft").k, kModelDraftTokens);
  EXPECT_EQ(speculate_from("draft:5").kind, DraftKind::model);
  EXPECT_EQ(speculate_from("mtp").k, kMtpDraftTokens);
  for (const char* wrong : {"ngram:", "ngram:0", "ngram:32", "ngram:3x", "drafts", "draft:", "off:2", ""})
    EXPECT_THROW(speculate_from(wrong), Error) << wrong;
}

// Ids with a piece that comes again, so that drafts are found from the start.
Ids repeating(uint64_t seed, int64_t vocab) {
  Ids ids = random_ids(11, seed);
  for (int32_t& id : ids) id %= static_cast<int32_t>(vocab);
  ids.insert(ids.end(), ids.begin(), ids.begin() + 6);
  return ids;
}

// Tokens with drafts of `k` against those without, greedily and sampled; how many drafts' tokens were accepted.
int64_t accepted_and_equal(const Checkpoint& c, const LoadOptions& load, const std::string& what) {
  Exec ex = Exec::cpu();
  constexpr int64_t kNew = 40;
  Engine engine(ex, c, {.load = load, .capacity = 17 + kNew});
  int64_t accepted = 0;
  for (const uint64_t seed : {1, 2})
    for (const float temperature : {0.f, .3f}) {
      const Ids prompt = repeating(seed, c.spec.vocab);
      const SamplerOptions sampler{.temperature = temperature, .top_k = 20, .seed = seed};
      const auto run = [&](int64_t k) {
        return generate_speculating(ex, engine, ngram_drafter(), prompt, kNew, sampler, {.k = k, .sparing = false});
      };
      const Speculated plain = run(0);
      for (const int64_t k : {3, 12}) {
        const Speculated drafted = run(k);
        EXPECT_EQ(drafted.ids, plain.ids) << what << ", seed " << seed << ", temperature " << temperature << ", " << k;
        accepted += drafted.report.drafts.accepted_in_all();
      }
    }
  return accepted;
}

TEST(Speculation, TokensAreThoseWithoutDrafts) {
  const Checkpoint c = Checkpoint::open(demo());
  EXPECT_GT(accepted_and_equal(c, {.dtype = DType::bf16}, "bf16"), 0);
  EXPECT_GT(accepted_and_equal(c, {.dtype = DType::bf16, .kv_cache = KvType::int8}, "int8"), 0);
  EXPECT_GT(accepted_and_equal(c, {.dtype = DType::f32, .kv_cache = KvType::fp8}, "f32, fp8"), 0);
}

// Windows, chunks, latents, chosen keys, keys of other layers: what was rejected leaves no trace in any.
TEST(Speculation, EveryKindOfCacheIsCutBack) {
  const TempDir dir;
  int64_t accepted = 0;
  for (const char* family : {"Gemma3ForCausalLM", "GptOssForCausalLM", "Llama4ForConditionalGeneration",
                             "DeepseekV3ForCausalLM", "DeepseekV32ForCausalLM", "Gemma4ForConditionalGeneration"}) {
    SynthOptions o;
    o.config = tiny_config_of(family).dump();
    synthesize(dir / family, o, {});
    const Checkpoint c = Checkpoint::open(dir / family);
    accepted += accepted_and_equal(c, {.dtype = DType::bf16}, family);
  }
  EXPECT_GT(accepted, 0);
}

TEST(Speculation, TokensAreThoseOfPlainGeneration) {
  Exec ex = Exec::cpu();
  const Checkpoint c = Checkpoint::open(demo());
  for (const KvType kv : {KvType::plain, KvType::fp8, KvType::int8, KvType::int4}) {
    Engine engine(ex, c, {.load = {.kv_cache = kv}, .capacity = 140});
    int64_t accepted = 0;
    for (const uint64_t seed : {1, 2, 3})
      for (const float temperature : {0.f, .3f}) {
        Ids prompt = random_ids(40, seed);
        prompt.insert(prompt.end(), prompt.begin(), prompt.begin() + 30);
        const SamplerOptions sampler{.temperature = temperature, .seed = seed};
        const SpeculateOptions drafts{.kind = DraftKind::ngram, .k = 7, .sparing = seed == 3};
        const Speculated drafted = generate_speculating(ex, engine, ngram_drafter(), prompt, 64, sampler, drafts);
        accepted += drafted.report.drafts.accepted_in_all();
        engine.reset();
        EXPECT_EQ(drafted.ids, generate(ex, engine, prompt, 64, sampler)) << seed << ", temperature " << temperature;
      }
    EXPECT_GT(accepted, 0);
  }
}

TEST(Speculation, EndsAtAnEosInsideADraft) {
  Exec ex = Exec::cpu();
  Checkpoint c = Checkpoint::open(demo());
  const Ids prompt = repeating(1, c.spec.vocab);
  Engine engine(ex, c, {.capacity = 80});
  const Ids all = generate_speculating(ex, engine, ngram_drafter(), prompt, 40, {}, {.k = 7, .sparing = false}).ids;
  c.spec.eos = {all[20]};
  Engine ending(ex, c, {.capacity = 80});
  const auto first = std::find(all.begin(), all.end(), all[20]);
  EXPECT_EQ(generate_speculating(ex, ending, ngram_drafter(), prompt, 40, {}, {.k = 7, .sparing = false}).ids,
            Ids(all.begin(), first + 1));
}

// Recurrent layers, convolutions, compressed keys: their states go back to before the draft.
TEST(Speculation, StatesGoBack) {
  const TempDir dir;
  int64_t accepted = 0;
  for (const char* family :
       {"Qwen3NextForCausalLM", "GraniteMoeHybridForCausalLM", "Lfm2ForCausalLM", "DeepseekV4ForCausalLM"}) {
    SynthOptions o;
    o.config = tiny_config_of(family).dump();
    synthesize(dir / family, o, {});
    accepted += accepted_and_equal(Checkpoint::open(dir / family), {.dtype = DType::bf16}, family);
  }
  EXPECT_GT(accepted, 0);
}

double chi_squared(std::span<const int64_t> found, std::span<const double> p) {
  int64_t draws = 0;
  for (const int64_t n : found) draws += n;
  double sum = 0;
  for (size_t i = 0; i < p.size(); ++i) {
    const double expected = p[i] * static_cast<double>(draws);
    if (expected == 0) {
      EXPECT_EQ(found[i], 0) << "token " << i;
      continue;
    }
    const double off = static_cast<double>(found[i]) - expected;
    sum += off * off / expected;
  }
  return sum;
}

// 10^5 judgements of a draft of two tokens: the first token has the distribution p, the draft's is accepted with p(x),
// what comes instead has p without x renormalised, and the second token, where the first was accepted, has its own p.
TEST(Speculation, WhatIsKeptHasTheDistributionOfPlainSampling) {
  constexpr int64_t kDraws = 100000, kVocab = 8;
  constexpr std::array<std::array<double, kVocab>, 3> kP{{{.3, .2, .15, .12, .1, .06, .04, .03},
                                                          {.05, .05, .1, .1, .4, .1, .1, .1},
                                                          {.5, .1, .1, .1, .05, .05, .05, .05}}};
  Tensor logits = Tensor::host(DType::f32, {3, kVocab});
  for (size_t r = 0; r < 3; ++r)
    for (size_t i = 0; i < kVocab; ++i) logits.as<float>()[r * kVocab + i] = static_cast<float>(std::log(kP[r][i]));
  const Ids draft = {1, 4};
  std::array<int64_t, kVocab> first{}, instead{}, second{}, third{};
  for (int64_t draw = 0; draw < kDraws; ++draw) {
    const Ids kept = judge(logits, {.ids = draft}, {.temperature = 1, .seed = 29}, 0, draw * 3);
    ++first[static_cast<size_t>(kept[0])];
    ASSERT_EQ(kept.size() > 1, kept[0] == draft[0]);
    if (kept.size() == 1) ++instead[static_cast<size_t>(kept[0])];
    if (kept.size() > 1) ++second[static_cast<size_t>(kept[1])];
    if (kept.size() > 2) ++third[static_cast<size_t>(kept[2])];
  }
  std::array<double, kVocab> without = kP[0];
  without[1] = 0;
  for (double& p : without) p /= 1 - kP[0][1];
  EXPECT_LT(chi_squared(first, kP[0]), tol::kChiSquared7);
  EXPECT_LT(chi_squared(instead, without), tol::kChiSquared7);
  EXPECT_LT(chi_squared(second, kP[1]), tol::kChiSquared7);
  EXPECT_LT(chi_squared(third, kP[2]), tol::kChiSquared7);
  EXPECT_GT(chi_squared(second, kP[2]), tol::kChiSquared7) << "the test tells two distributions apart";
}

// The same where the draft is drawn from chances of its own, by all options of the sampler on both sides: the first
// token kept has the distribution of plain sampling, the second one too where it follows an accepted one.
TEST(Speculation, RejectionSamplingHasTheDistributionOfPlainSampling) {
  constexpr int64_t kDraws = 100000;
  constexpr size_t kVocab = 8;
  constexpr std::array<std::array<double, kVocab>, 2> kP{
      {{.3, .2, .15, .12, .1, .06, .04, .03}, {.05, .05, .1, .1, .4, .1, .1, .1}}};
  constexpr std::array<std::array<double, kVocab>, 2> kQ{
      {{.02, .3, .05, .4, .05, .08, .06, .04}, {.3, .05, .02, .03, .35, .05, .1, .1}}};
  const auto logits_of = [](const auto& rows, size_t count) {
    Tensor t = Tensor::host(DType::f32, {static_cast<int64_t>(count), kVocab});
    for (size_t r = 0; r < count; ++r)
      for (size_t i = 0; i < kVocab; ++i)
        t.as<float>()[r * kVocab + i] = static_cast<float>(std::log(rows[std::min(r, rows.size() - 1)][i]));
    return t;
  };
  const Tensor p = logits_of(kP, 3), q = logits_of(kQ, 2);
  const auto row = [](const Tensor& t, size_t r) { return std::span<const float>(t.as<float>() + r * kVocab, kVocab); };
  for (const SamplerOptions& o : {SamplerOptions{.temperature = 1, .seed = 29},
                                  {.temperature = .7f, .seed = 3},
                                  {.temperature = 1, .top_k = 5, .seed = 5},
                                  {.temperature = 1, .top_p = .8f, .seed = 7},
                                  {.temperature = 1.3f, .min_p = .2f, .seed = 11}}) {
    const std::array<Chances, 2> guess{chances_of(row(q, 0), o), chances_of(row(q, 1), o)};
    const std::array<Chances, 2> plain{chances_of(row(p, 0), o), chances_of(row(p, 1), o)};
    std::array<std::array<int64_t, kVocab>, 2> found{};
    int64_t accepted = 0;
    const Rng numbers(o.seed, "draft");
    for (int64_t draw_at = 0; draw_at < kDraws; ++draw_at) {
      const int64_t position = draw_at * 3;
      Draft draft;
      for (size_t i = 0; i < 2; ++i) {
        draft.chances.push_back(guess[i]);
        draft.ids.push_back(draw(guess[i], numbers.uniform_at(static_cast<uint64_t>(position) + i)));
      }
      const Ids kept = judge(p, draft, o, 0, position);
      ++found[0][static_cast<size_t>(kept[0])];
      accepted += kept.size() > 1;
      if (kept.size() > 1) ++found[1][static_cast<size_t>(kept[1])];
    }
    double overlap = 0;  // P(accepted) = sum of min(p, q)
    std::array<std::array<double, kVocab>, 2> expected{}, drafted{};
    for (size_t r = 0; r < 2; ++r) {
      for (size_t i = 0; i < plain[r].ids.size(); ++i)
        expected[r][static_cast<size_t>(plain[r].ids[i])] = plain[r].shares[i] / plain[r].total;
      for (size_t i = 0; i < guess[r].ids.size(); ++i)
        drafted[r][static_cast<size_t>(guess[r].ids[i])] = guess[r].shares[i] / guess[r].total;
      // Seven degrees of freedom, or fewer where the options leave fewer tokens.
      EXPECT_LT(chi_squared(found[r], expected[r]), tol::kChiSquared7) << "row " << r << ", seed " << o.seed;
    }
    for (size_t i = 0; i < kVocab; ++i) overlap += std::min(expected[0][i], drafted[0][i]);
    const double deviation = std::sqrt(overlap * (1 - overlap) * kDraws);
    EXPECT_NEAR(static_cast<double>(accepted), overlap * kDraws, 5 * deviation) << "seed " << o.seed;
  }
}

// Of `draft` as the draft of `c`: greedy tokens are those without, sampled ones need not be; the share accepted.
double acceptance(const Checkpoint& c, const Checkpoint& draft, float temperature) {
  Exec ex = Exec::cpu();
  constexpr int64_t kNew = 48;
  Engine engine(ex, c, {.capacity = 17 + kNew});
  int64_t accepted = 0, reached = 0;
  for (const uint64_t seed : {1, 2, 3}) {
    const Ids prompt = repeating(seed, c.spec.vocab);
    const SamplerOptions sampler{.temperature = temperature, .seed = seed};
    const auto run = [&](const Drafter& drafter, int64_t k) {
      const SpeculateOptions o{.kind = DraftKind::model, .k = k, .sparing = false};
      return generate_speculating(ex, engine, drafter, prompt, kNew, sampler, o);
    };
    const Ids plain = run({}, 0).ids;
    for (const int64_t k : {1, 5}) {
      DraftModel model(ex, draft, {}, 17 + kNew, c.spec.vocab);
      const Speculated drafted = run(model.drafter(), k);
      EXPECT_EQ(drafted.ids.size(), plain.size());
      if (temperature == 0) {
        EXPECT_EQ(drafted.ids, plain) << "seed " << seed << ", k " << k;
      }
      EXPECT_GT(drafted.report.draft_seconds, 0);
      accepted += drafted.report.drafts.accepted_in_all();
      for (const int64_t n : drafted.report.drafts.reached) reached += n;
    }
  }
  return static_cast<double>(accepted) / static_cast<double>(reached);
}

TEST(Speculation, ADraftModelLeavesGreedyTokens) {
  const TempDir dir;
  const Checkpoint c = Checkpoint::open(demo());
  EXPECT_EQ(acceptance(c, c, 0), 1) << "a model agrees with itself";
  EXPECT_EQ(acceptance(c, c, .8f), 1) << "p = q: every draw is accepted";
  SynthOptions o;
  o.config = bytes_of_file(demo() / "config.json");
  synthesize(dir / "other", o, {});
  const Checkpoint other = Checkpoint::open(dir / "other");
  EXPECT_LT(acceptance(c, other, 0), .2) << "weights drawn at random";
  EXPECT_LT(acceptance(c, other, .8f), .5);
}

// A draft model with layers that keep a state, of a model with such layers.
TEST(Speculation, ADraftModelMayKeepStates) {
  const TempDir dir;
  SynthOptions o;
  o.config = tiny_config_of("Qwen3NextForCausalLM").dump();
  synthesize(dir / "a", o, {});
  o.seed = 9;
  synthesize(dir / "b", o, {});
  const Checkpoint a = Checkpoint::open(dir / "a"), b = Checkpoint::open(dir / "b");
  EXPECT_EQ(acceptance(a, a, 0), 1);
  EXPECT_LT(acceptance(a, b, 0), .5);
}

TEST(Speculation, TheReportCountsByPositionAndPredicts) {
  SpeculationReport r;
  r.add(0, 1, .010);
  r.add(3, 4, .020);  // all three accepted
  r.add(3, 2, .030);  // one accepted, the second rejected
  r.add(1, 1, .015);  // the only one rejected
  EXPECT_EQ(r.drafts.reached, (std::vector<int64_t>{3, 2, 1}));
  EXPECT_EQ(r.drafts.accepted, (std::vector<int64_t>{2, 1, 1}));
  EXPECT_EQ(r.steps(), 4);
  EXPECT_EQ(r.drafts.drafts, 3);
  EXPECT_EQ(r.drafts.drafted, 7);
  EXPECT_DOUBLE_EQ(r.drafts.alpha(), 4. / 6);
  EXPECT_DOUBLE_EQ(r.drafts.alpha(1), .5);
  EXPECT_DOUBLE_EQ(r.tokens_per_step(), 2);
  const double a = 4. / 6;
  EXPECT_DOUBLE_EQ(r.drafts.predicted_tokens(), (2 * (1 - std::pow(a, 4)) / (1 - a) + (1 - a * a) / (1 - a)) / 3);
  constexpr double kShort = .020 * 1.01;  // the longer pass behind it lets the shortest grow
  EXPECT_DOUBLE_EQ(r.cost(), (2 * kShort + .015) / 3 / .010);
  EXPECT_DOUBLE_EQ(r.speed_up(), 8 * .010 / (.010 + 2 * kShort + .015));
}

TEST(Speculation, ARowCostsWhatTheLineThroughThePassesSays) {
  PassTimes t;
  EXPECT_DOUBLE_EQ(t.cost(1, 4), 4 * kRowUnseen);
  t.add(1, .010, false);
  t.add(5, .012, true);
  EXPECT_NEAR(t.cost(1, 4), .2, 1e-9);
  t.add(5, .050, true);  // disturbed
  EXPECT_NEAR(t.cost(1, 4), .2, .03);
  EXPECT_NEAR(t.cost(5, 8), 8 * 5 * .0005 / .012, .1) << "of five sequences, whose pass gives five tokens";
  PassTimes disturbed;
  disturbed.add(1, .010, false);
  disturbed.add(5, .100, true);
  const double at_first = disturbed.cost(1, 4);
  EXPECT_NEAR(at_first, 9, 1e-9);
  for (int i = 0; i < 100; ++i) disturbed.add(1, .010, false);
  EXPECT_NEAR(disturbed.cost(1, 4), 9 * std::pow(kForgotten, 100), 1e-6);
  for (int i = 0; i < 100; ++i) disturbed.add(1, .010, false);
  EXPECT_DOUBLE_EQ(disturbed.cost(1, 4), 4 * kRowUnseen);
}

// Passes of one row and 10 ms, of which each further row adds 2: what is lost is bounded, whatever the drafts.
TEST(Speculation, DraftsThatLoseAreHeldBack) {
  constexpr int64_t kPasses = 1000, kMost = 7;
  constexpr double kRow = .2;
  const auto run = [&](int64_t accepted_of_each) {
    DraftAccount account(kNgramCredit);
    double won = 0;
    for (int64_t i = 0; i < kPasses; ++i) {
      int64_t n = kMost;
      while (n > 0 && kRow * static_cast<double>(n) > account.credit()) --n;
      const int64_t accepted = std::min(n, accepted_of_each);
      won += static_cast<double>(accepted) - kRow * static_cast<double>(n);
      account.settle(accepted, kRow * static_cast<double>(n));
    }
    return won;
  };
  EXPECT_GE(run(0), -kNgramCredit - kCreditOfToken * kPasses);
  EXPECT_LT(run(0), -kNgramCredit) << "one is tried now and then";
  EXPECT_GT(run(kMost), .99 * kPasses * kMost * (1 - kRow)) << "drafts that win go on in full length";
}

}  // namespace
}  // namespace fewbit::test
