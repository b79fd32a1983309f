// LongRoPE: which of its two tables a run takes, against models that have one table: the same frequencies as divisors
// of a GGUF file's kind, the same factor on cos and sin as YaRN that scales nothing.
#include <fstream>
#include <nlohmann/json.hpp>

#include "src/core/rng.h"
#include "src/eval/perplexity.h"
#include "src/eval/tasks.h"
#include "src/model/synth/synth.h"
#include "src/run/engine.h"
#include "src/text/corpus.h"
#include "tests/support/devices.h"
#include "tests/support/support.h"
#include "tests/support/tolerance.h"

namespace fewbit::test {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr int64_t kOriginal = 16;

std::vector<int32_t> random_ids(int64_t n, uint64_t seed, uint64_t vocab = 512) {
  Rng rng(seed, "ids");
  std::vector<int32_t> ids;
  for (int64_t i = 0; i < n; ++i) ids.push_back(static_cast<int32_t>(rng.below(vocab)));
  return ids;
}

std::vector<double> divisors(size_t count, double step) {
  std::vector<double> v;
  for (size_t i = 0; i < count; ++i) v.push_back(1 + step * static_cast<double>(i));
  return v;
}

// A small Phi-3 whose config takes each rotation in turn.
class LongRope : public OnDevices {
 protected:
  LongRope() {
    synthesize(dir_ / "phi3", {.preset = "tiny-phi3"}, {});
    config_ = json::parse(std::ifstream(dir_ / "phi3/config.json"));
    config_["original_max_position_embeddings"] = kOriginal;
    config_["partial_rotary_factor"] = 0.75;  // 48 of 64 features, as in Phi-4-mini
  }
  Checkpoint open(const json& rope_scaling) {
    config_["rope_scaling"] = rope_scaling;
    std::ofstream(dir_ / "phi3/config.json") << config_;
    return Checkpoint::open(dir_ / "phi3");
  }
  Checkpoint both(double attention_factor = 1) {
    return open({{"type", "longrope"},
                 {"short_factor", kShort},
                 {"long_factor", kLong},
                 {"attention_factor", attention_factor}});
  }
  Checkpoint one(const std::vector<double>& factors) { return open({{"type", "factors"}, {"factors", factors}}); }

  // Logits of the last position after a prefill and three steps, in a cache of `capacity`.
  static std::vector<Tensor> engine_logits(Exec& ex, const Checkpoint& c, EngineOptions o) {
    o.load.dtype = DType::f32;
    Engine engine(ex, c, o);
    return engine_logits(ex, engine, o.batch);
  }
  static std::vector<Tensor> engine_logits(Exec& ex, Engine& engine, int64_t batch) {
    std::vector<Tensor> out;
    out.push_back(ex.to_host(engine.prefill(random_ids(9 * batch, 1))));
    for (uint64_t step = 2; step < 5; ++step)
      out.push_back(ex.to_host(
          engine.decode(ex.to_device(Tensor::host_from<int32_t>(DType::i32, {batch}, random_ids(batch, step))))));
    return out;
  }
  static Tensor runner_logits(Exec& ex, const Checkpoint& c, int64_t seqs, int64_t len) {
    Runner runner(ex, c, {.dtype = DType::f32});
    return ex.to_host(runner.logits(runner.hidden(random_ids(seqs * len, 7), seqs)));
  }
  static void same(const std::vector<Tensor>& a, const std::vector<Tensor>& b) {
    ASSERT_EQ(a.size(), b.size());
    for (size_t i = 0; i < a.size(); ++i) EXPECT_EQ(first_difference(a[i], b[i]), "") << "logits " << i;
  }
  // How far apart the two tables put the model, beyond what any of the comparisons forgives.
  static void told_apart(ConstTensorView a, ConstTensorView b) {
    EXPECT_GT(relative_error(a, b), 10 * tol::kLogitsF32);
  }

  const std::vector<double> kShort = divisors(24, 0.05), kLong = divisors(24, 1.5);
  TempDir dir_;
  json config_;
};

TEST_P(LongRope, ARunnerTakesTheTableOfItsPass) {
  Exec ex = exec();
  Runner runner(ex, both(), {.dtype = DType::f32});
  const auto logits = [&](int64_t len) { return ex.to_host(runner.logits(runner.hidden(random_ids(2 * len, 7), 2))); };
  const Checkpoint short_one = one(kShort);
  const Tensor within = runner_logits(ex, short_one, 2, kOriginal), beyond_short = runner_logits(ex, short_one, 2, 20);
  const Tensor beyond = runner_logits(ex, one(kLong), 2, 20);
  told_apart(beyond, beyond_short);
  EXPECT_EQ(first_difference(logits(kOriginal), within), "");
  EXPECT_EQ(first_difference(logits(20), beyond), "");
  EXPECT_EQ(first_difference(logits(kOriginal), within), "") << "after a longer pass";
}

TEST_P(LongRope, AnEngineTakesTheTableOfItsCapacity) {
  Exec ex = exec();
  const Checkpoint c = both();
  Engine engine(ex, c, {.load = {.dtype = DType::f32}, .capacity = kOriginal});
  const Checkpoint short_one = one(kShort), long_one = one(kLong);
  const auto within = engine_logits(ex, short_one, {.capacity = kOriginal});
  const auto beyond = engine_logits(ex, long_one, {.capacity = kOriginal + 1});  // of a run: its sequences stay at 12
  told_apart(beyond.back(), within.back());
  same(engine_logits(ex, engine, 1), within);
  engine.resize(1, kOriginal + 1);
  same(engine_logits(ex, engine, 1), beyond);
  engine.resize(1, kOriginal);
  same(engine_logits(ex, engine, 1), within);
  ASSERT_EQ(engine.notes().size(), 2u);
  EXPECT_EQ(engine.notes()[0], "LongRoPE: the short table, that of sequences of up to 16 positions");
  EXPECT_EQ(engine.notes()[1], "LongRoPE: the long table, that of sequences of more than 16 positions");
  for (const int64_t capacity : {kOriginal, 2 * kOriginal})
    for (const bool graph : {false, true}) {
      const EngineOptions o{.batch = 3, .capacity = capacity, .prefill_chunk = 12, .graph = graph};
      same(engine_logits(ex, c, o), engine_logits(ex, capacity > kOriginal ? long_one : short_one, o));
    }
}

TEST_P(LongRope, AnEngineAgreesWithARunnerOnLongSequences) {
  Exec ex = exec();
  const Checkpoint c = both(1.25);
  const std::vector<int32_t> ids = random_ids(24, 7);
  Runner runner(ex, c, {.dtype = DType::f32});
  const Tensor expected = ex.to_host(runner.logits(runner.hidden(ids, 1)));
  Engine engine(ex, c, {.load = {.dtype = DType::f32}, .capacity = 24, .prefill_chunk = 5});
  Tensor found = ex.to_host(engine.prefill({ids.data(), 14}));  // the cache is read across the limit
  for (int64_t i = 14;; ++i) {
    EXPECT_LE(relative_error(found, expected.view().row_range(i - 1, i)), tol::kLogitsF32) << i;
    if (i == 24) break;
    found = ex.to_host(engine.decode(ex.to_device(Tensor::host_from<int32_t>(DType::i32, {1}, {ids.data() + i, 1}))));
  }
}

TEST_P(LongRope, BothTablesTakeTheFactorOnCosAndSin) {
  Exec ex = exec();
  const std::vector<double> ones(24, 1.0);
  const Checkpoint plain = open({{"type", "default"}});
  const Checkpoint yarn = open({{"type", "yarn"}, {"factor", 1.0}, {"attention_factor", 1.25}});
  const Checkpoint both =
      open({{"type", "longrope"}, {"short_factor", ones}, {"long_factor", ones}, {"attention_factor", 1.25}});
  for (const int64_t len : {kOriginal, kOriginal + 4}) {
    const Tensor expected = runner_logits(ex, yarn, 2, len);
    EXPECT_GT(relative_error(expected, runner_logits(ex, plain, 2, len)), tol::kLogitsF32);
    EXPECT_EQ(first_difference(runner_logits(ex, both, 2, len), expected), "") << len;
  }
}

TEST_P(LongRope, PerplexityTakesTheTableOfItsWindows) {
  Exec ex = exec();
  const Checkpoint c = both(), short_one = one(kShort), long_one = one(kLong);
  for (const int64_t len : {kOriginal, 2 * kOriginal}) {
    const ScoredWindows w(windows_from_ids(random_ids(4 * 2 * kOriginal, 7), 4 * 2 * kOriginal / len, len, "ids"));
    const auto mean = [&](const Checkpoint& model) {
      Runner runner(ex, model, {.dtype = DType::f32});
      return perplexity(runner, w, 3 * len).mean_nll;
    };
    const auto streamed = [&](const Checkpoint& model) {
      std::vector<std::string> notes;
      return perplexity_streamed(ex, model, {.dtype = DType::f32}, w, 3 * len, &notes).mean_nll;
    };
    const Checkpoint &right = len > kOriginal ? long_one : short_one, &wrong = len > kOriginal ? short_one : long_one;
    EXPECT_EQ(mean(c), mean(right)) << len;
    EXPECT_NE(mean(c), mean(wrong)) << len;
    EXPECT_EQ(streamed(c), streamed(right)) << len;
  }
}

INSTANTIATE_TEST_SUITE_P(On, LongRope, every_device(), device_name);

// Answers of both lengths in one batch: each is scored as by itself.
TEST(LongRopeTasks, AShortAnswerIsScoredAsByItself) {
  const TempDir dir;
  fs::copy(builtin_model_dir(), dir / "m");
  json config = json::parse(std::ifstream(dir / "m/config.json"));
  config["rope_parameters"] = {{"rope_type", "longrope"},
                               {"rope_theta", 10000.0},
                               {"original_max_position_embeddings", kOriginal},
                               {"short_factor", divisors(32, 0)},
                               {"long_factor", divisors(32, 1)}};
  std::ofstream(dir / "m/config.json") << config;
  const Checkpoint c = Checkpoint::open(dir / "m");
  const Tokenizer tokenizer = Tokenizer::open(c.dir);
  std::ofstream(dir / "t.jsonl")
      << R"({"context": "The ship", "choices": [" sailed", )"
      << R"(" came home at last, late in the evening, when nobody waited for it any more on the quay"], "gold": 0})";
  const std::vector<TaskItem> items = read_tasks(dir / "t.jsonl");
  Exec ex = Exec::cpu();
  Runner runner(ex, c, {.dtype = DType::f32});
  const TaskAnswer a = answer_tasks(runner, tokenizer, items, {.batch_tokens = 500})[0];
  bool lengths[2] = {};
  for (size_t choice = 0; choice < 2; ++choice) {
    const std::vector<int32_t> head = tokenizer.encode(items[0].contexts[0]),
                               ids = tokenizer.encode(items[0].contexts[0] + items[0].continuations[choice]);
    lengths[turns_long(c.spec, static_cast<int64_t>(ids.size()))] = true;
    double sum = 0;
    for (const float loss : runner.nll(ids, 1, static_cast<int64_t>(head.size()))) sum -= loss;
    EXPECT_NEAR(a.logprob[choice], sum, std::fabs(sum) * tol::kLogitsF32) << choice;
  }
  EXPECT_TRUE(lengths[0] && lengths[1]);
}

}  // namespace
}  // namespace fewbit::test
