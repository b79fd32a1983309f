// The way back through a block against differences of its forward pass, and what learned rounding promises: a
// smaller error of the block's output or the codes as they were, the same bits on every run.
#include "src/quant/loop/learn/learned_rounding.h"

#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <numeric>

#include "kernels/products/dequantize.h"
#include "src/model/synth/synth.h"
#include "src/quant/loop/learn/block_tape.h"
#include "src/quant/loop/pipeline.h"
#include "src/quant/method.h"
#include "tests/kernels/quantize/quantizer_fixture.h"
#include "tests/quant/made_up_windows.h"
#include "tests/support/devices.h"

namespace fewbit::test {
namespace {

namespace fs = std::filesystem;

// A rotation of two tables.
void add_long_rope(const fs::path& dir, std::vector<fs::path>& all) {
  synthesize(dir, {.preset = "tiny"}, {});
  nlohmann::json c = nlohmann::json::parse(std::ifstream(dir / "config.json"));
  c["rope_scaling"] = {{"type", "longrope"},
                       {"original_max_position_embeddings", 20},
                       {"short_factor", std::vector<double>(16, 1)},
                       {"long_factor", std::vector<double>(16, 3)}};
  std::ofstream(dir / "config.json") << c;
  all.push_back(dir);
}

// A made model, one with LongRoPE, and those of the reference folder that are there: biases, norms of heads, windows.
std::vector<fs::path> models(const TempDir& dir) {
  std::vector<fs::path> all = {dir / "tiny"};
  synthesize(dir / "tiny", {.preset = "tiny"}, {});
  add_long_rope(dir / "long", all);
  for (const char* name : {"qwen2-bias", "qwen3-qknorm", "mistral-swa", "gemma2", "gemma3", "phi3-fused"})
    if (const fs::path p = reference(std::string("goldens/models/") + name); fs::exists(p)) all.push_back(p);
  return all;
}

double inner(const Tensor& a, const Tensor& b) {
  return std::inner_product(a.as<float>(), a.as<float>() + a.numel(), b.as<float>(), 0.0, std::plus<>{},
                            [](float x, float y) { return static_cast<double>(x) * y; });
}

// One block of a model on a device, in f32, with states to put through it.
struct BlockBench {
  Exec& ex;
  Checkpoint c;
  RopeTables ropes;
  BlockWeights weights;
  int64_t seqs, len;
  BlockTape tape;
  Tensor entering;

  BlockBench(Exec& on, const fs::path& model, int64_t s, int64_t l)
      : ex(on),
        c(Checkpoint::open(model)),
        ropes(ex, c.spec, l),
        weights(load_block(ex, c, 0, {.dtype = DType::f32}, nullptr)),
        seqs(s),
        len(l),
        tape(ex, c.spec, 0, s, l),
        entering(random_normal(DType::f32, {s * l, c.spec.hidden}, 7)) {}

  Tensor& weight(const std::string& name) { return std::get<DenseLinear>(weights.linears.at(name)).weight; }
  Tensor output() {
    ex.copy(entering, tape.states(seqs));
    tape.run(weights, ropes, seqs);
    return ex.to_host(tape.states(seqs));
  }
  // The slope of <output, dy> when what `put` puts in its place moves from `at` along `direction`.
  double slope(const Tensor& at, const Tensor& direction, const Tensor& dy,
               const std::function<void(const Tensor&)>& put) {
    const double reach = 2e-3 * std::sqrt(inner(at, at) / inner(direction, direction));
    double value[2];
    for (const int side : {0, 1}) {
      Tensor moved = clone_host(at);
      for (int64_t i = 0; i < moved.numel(); ++i)
        moved.as<float>()[i] += static_cast<float>(side ? reach : -reach) * direction.as<float>()[i];
      put(moved);
      value[side] = inner(output(), dy);
    }
    put(at);
    return (value[1] - value[0]) / (2 * reach);
  }
  double slope(const std::string& name, const Tensor& direction, const Tensor& dy) {
    return slope(ex.to_host(weight(name)), direction, dy, [&](const Tensor& w) { ex.copy(w, weight(name)); });
  }
};

FEWBIT_DEVICE_TEST(BlockTape, GradientsAgreeWithDifferences) {
  const TempDir dir;
  for (const fs::path& model : models(dir)) {
    BlockBench b(ex, model, 2, 24);
    const Tensor dy = random_normal(DType::f32, b.entering.shape(), 8);
    std::map<std::string, Tensor> grads;
    for (const auto& [name, linear] : b.weights.linears)
      grads.emplace(name, poisoned(b.ex, DType::f32, std::get<DenseLinear>(linear).weight.shape()));
    b.ex.copy(b.entering, b.tape.states(2));
    b.tape.record(b.weights, b.ropes, 2);
    const Tensor room = b.ex.to_device(dy);
    b.tape.backward(b.weights, room, grads);
    for (const auto& [name, device] : grads) {
      const Tensor grad = b.ex.to_host(device), other = random_normal(DType::f32, grad.shape(), 9);
      const double size = std::sqrt(inner(grad, grad));
      for (const Tensor* direction : {&grad, &other})
        EXPECT_NEAR(b.slope(name, *direction, dy), inner(grad, *direction),
                    tol::kSlope * size * std::sqrt(inner(*direction, *direction)))
            << model << " " << name;
    }
  }
}

// The way back to the states that entered, and what is shown of it: every linear once; the last one's outputs have the
// gradient of the block's, to which they are added.
FEWBIT_DEVICE_TEST(BlockTape, GoesBackThroughTheBlock) {
  const TempDir dir;
  const std::vector<fs::path> all = models(dir);
  for (const fs::path& model : all) {
    BlockBench b(ex, model, 2, 24);
    const Tensor dy = random_normal(DType::f32, b.entering.shape(), 8);
    b.ex.copy(b.entering, b.tape.states(2));
    b.tape.record(b.weights, b.ropes, 2);
    const Tensor room = b.ex.to_device(dy);
    std::map<std::string, Tensor> shown;
    b.tape.backward_through(b.weights, room, [&](const LinearDef& l, ConstTensorView g) {
      EXPECT_TRUE(shown.emplace(l.name, b.ex.to_host(g)).second) << l.name;
      EXPECT_EQ(g.shape, (Shape{b.entering.rows(), l.out_features})) << l.name;
    });
    EXPECT_EQ(shown.size(), b.weights.linears.size()) << model;
    if (model == all[0]) {
      EXPECT_EQ(first_difference(shown.at("mlp.down_proj"), dy), "");
    }
    const Tensor grad = b.ex.to_host(room), other = random_normal(DType::f32, grad.shape(), 9);
    const double size = std::sqrt(inner(grad, grad));
    for (const Tensor* direction : {&grad, &other})
      EXPECT_NEAR(b.slope(clone_host(b.entering), *direction, dy, [&](const Tensor& x) { b.entering = clone_host(x); }),
                  inner(grad, *direction), tol::kSlope * size * std::sqrt(inner(*direction, *direction)))
          << model;
  }
}

TEST(BlockTape, GradientsOfSomeWeightsAreThoseOfAll) {
  const TempDir dir;
  const fs::path model = models(dir)[0];
  Exec ex = Exec::cpu();
  BlockBench b(ex, model, 1, 16);
  const auto gradient = [&](const std::vector<std::string>& names) {
    std::map<std::string, Tensor> grads;
    for (const std::string& n : names) grads.emplace(n, poisoned(b.ex, DType::f32, b.weight(n).shape()));
    b.ex.copy(b.entering, b.tape.states(1));
    b.tape.record(b.weights, b.ropes, 1);
    const Tensor dy = random_normal(DType::f32, b.entering.shape(), 8);
    b.tape.backward(b.weights, dy, grads);
    return grads;
  };
  const auto all = gradient({"self_attn.q_proj", "self_attn.o_proj", "mlp.down_proj"}),
             some = gradient({"self_attn.o_proj"});
  EXPECT_EQ(first_difference(some.at("self_attn.o_proj"), all.at("self_attn.o_proj")), "");
}

// The block's linears coded by plain rounding to 3 bits, and what they should reproduce.
constexpr int64_t kWindows = 3;
struct LearningBench {
  BlockBench b;
  std::map<std::string, QuantizedLinear> coded;
  Tensor target;

  LearningBench(Exec& ex, const fs::path& model) : b(ex, model, kWindows, 16) {
    target = b.output();
    for (auto& [name, linear] : b.weights.linears) {
      Tensor& w = std::get<DenseLinear>(linear).weight;
      LinearJob job{.name = name, .weight = w};
      job.spec = {.bits = 3, .group = 32, .symmetric = true};
      QuantizedLinear q = method("rtn").quantize(b.ex, job).linear;
      b.ex.copy(dequantize_reference(q), w);
      coded[name] = std::move(q);
    }
  }
  LearnedResult learn(const Tensor& aim, const std::function<double()>& seconds_left = {}) {
    StateStore store(b.ex, {});
    const Chunks chunks{.windows = kWindows, .length = b.entering.rows() / kWindows};
    States entering(store, chunks, DType::f32, b.entering.cols()), wanted(store, chunks, DType::f32, aim.cols());
    entering.put(0, b.ex.to_device(b.entering));
    wanted.put(0, b.ex.to_device(aim));
    BlockLearning job{.spec = &b.c.spec,
                      .layer = 0,
                      .ropes = &b.ropes,
                      .weights = &b.weights,
                      .entering = &entering,
                      .target = &wanted,
                      .seed = 5,
                      .linears = {},
                      .progress = {},
                      .seconds_left = seconds_left};
    for (auto& [name, q] : coded) job.linears.push_back({.name = name, .coded = &q});
    return learn_rounding(b.ex, job);
  }
  double error() {
    for (const auto& [name, q] : coded) b.ex.copy(dequantize_reference(q), b.weight(name));
    const Tensor y = b.output();
    double sum = 0;
    for (int64_t i = 0; i < y.numel(); ++i)
      sum += std::pow(static_cast<double>(y.as<float>()[i]) - target.as<float>()[i], 2);
    return sum / static_cast<double>(y.numel());
  }
};

FEWBIT_DEVICE_TEST(LearnedRounding, LowersTheErrorItNames) {
  const fs::path model = reference("goldens/models/qwen3-qknorm");
  FEWBIT_NEEDS_REFERENCE("goldens/models/qwen3-qknorm");
  LearningBench bench(ex, model);
  const double before = bench.error();
  const LearnedResult r = bench.learn(bench.target);
  EXPECT_TRUE(r.changed);
  EXPECT_NEAR(r.before, before, tol::kSlope * before);
  EXPECT_LT(r.after, 0.8 * r.before);
  EXPECT_NEAR(bench.error(), r.after, tol::kSlope * r.after);
  for (const auto& [name, q] : bench.coded) EXPECT_EQ(check(q), "") << name;
}

FEWBIT_DEVICE_TEST(LearnedRounding, SameBitsOnEveryRun) {
  const TempDir dir;
  const fs::path model = models(dir)[0];
  LearningBench first(ex, model), second(ex, model);
  first.learn(first.target);
  second.learn(second.target);
  for (const auto& [name, q] : first.coded) EXPECT_EQ(content_hash(q), content_hash(second.coded.at(name))) << name;
}

// Where the start cannot be bettered it is kept.
FEWBIT_DEVICE_TEST(LearnedRounding, KeepsAStartWithoutError) {
  const TempDir dir;
  LearningBench bench(ex, models(dir)[0]);
  std::map<std::string, std::string> hashes;
  for (const auto& [name, q] : bench.coded) hashes[name] = content_hash(q);
  const LearnedResult r = bench.learn(bench.b.output());
  EXPECT_FALSE(r.changed);
  EXPECT_EQ(r.after, r.before);
  for (const auto& [name, q] : bench.coded) EXPECT_EQ(content_hash(q), hashes.at(name)) << name;
}

// A clock that loses a second whenever it is looked at: the first loss takes one, a step of all windows then three.
FEWBIT_DEVICE_TEST(LearnedRounding, TakesTheStepsThatFit) {
  const TempDir dir;
  const fs::path model = models(dir)[0];
  LearningBench bench(ex, model);
  double left = 101;
  const LearnedResult r = bench.learn(bench.target, [&] { return left -= 1; });
  EXPECT_EQ(r.steps, (99 - 1) / 3);
  EXPECT_LE(r.after, r.before);
  EXPECT_NEAR(bench.error(), r.after, tol::kSlope * r.after);

  LearningBench much(ex, model);
  left = 1e6;
  EXPECT_EQ(much.learn(much.target, [&] { return left -= 1; }).steps, kLearningSteps);
}

// When time ends before the steps do, what they reached is kept; without any time nothing is touched.
FEWBIT_DEVICE_TEST(LearnedRounding, EndsWithItsTime) {
  const TempDir dir;
  const fs::path model = models(dir)[0];
  LearningBench bench(ex, model);
  int looked = 0;
  const LearnedResult r = bench.learn(bench.target, [&] { return ++looked < 50 ? 1e4 - looked : 0.0; });
  EXPECT_EQ(r.steps, 47);  // looked at twice before the first, and once before each
  EXPECT_TRUE(r.changed);
  EXPECT_NEAR(bench.error(), r.after, tol::kSlope * r.after);

  LearningBench idle(ex, model);
  std::map<std::string, std::string> hashes;
  for (const auto& [name, q] : idle.coded) hashes[name] = content_hash(q);
  const LearnedResult none = idle.learn(idle.target, [] { return 0.0; });
  EXPECT_FALSE(none.changed);
  EXPECT_EQ(none.steps, 0);
  for (const auto& [name, q] : idle.coded) EXPECT_EQ(content_hash(q), hashes.at(name)) << name;
}

// A whole run: only what the recipe asks for is learned, and a run that was stopped and resumed writes the
// same.
TEST(LearnedRounding, InThePipeline) {
  Exec ex = Exec::cpu();
  const TempDir dir;
  const Checkpoint c = Checkpoint::open(models(dir)[0]);
  const Windows windows = made_up_windows(c.spec, 2, 16);
  PlanOptions options{.base = parse_recipe("gptq int3 g32 effort=best"), .tokens = 32, .seq_len = 16};
  options.rules.push_back({"*.up_proj", parse_recipe("int4")});
  const QuantPlan plan = make_plan(c, options);
  const QuantReport whole = run_pipeline(ex, c, plan, windows, {.recipe = "test", .out = dir / "whole"});
  EXPECT_EQ(whole.phases.count("learn"), 1u);
  for (const LinearRecord& l : whole.linears)
    EXPECT_FALSE(l.learned && l.name.find("up_proj") != std::string::npos) << l.name;

  QuantJob job{.recipe = "test", .out = dir / "out"};
  int asked = 0;
  job.stop_requested = [&] { return ++asked > 1; };  // after one sealed block
  EXPECT_THROW(run_pipeline(ex, c, plan, windows, job), Error);
  job.stop_requested = {};
  job.resume = true;
  const QuantReport resumed = run_pipeline(ex, c, plan, windows, job);
  ASSERT_EQ(resumed.linears.size(), whole.linears.size());
  for (size_t i = 0; i < whole.linears.size(); ++i) {
    EXPECT_EQ(resumed.linears[i].hash, whole.linears[i].hash) << whole.linears[i].name;
    EXPECT_EQ(resumed.linears[i].learned, whole.linears[i].learned) << whole.linears[i].name;
    EXPECT_EQ(resumed.linears[i].learning_steps, whole.linears[i].learning_steps) << whole.linears[i].name;
  }
}

// A limit in minutes: refused where nothing could be cut short; with no time left the codes stay GPTQ's, and the
// records say so.
TEST(LearnedRounding, WithinMinutes) {
  Exec ex = Exec::cpu();
  const TempDir dir;
  const Checkpoint c = Checkpoint::open(models(dir)[0]);
  const Windows windows = made_up_windows(c.spec, 2, 16);
  const auto run = [&](const char* recipe, double minutes, const char* out) {
    const QuantPlan plan =
        make_plan(c, {.base = parse_recipe(recipe), .tokens = 32, .seq_len = 16, .minutes = minutes});
    return run_pipeline(ex, c, plan, windows, {.recipe = "test", .out = dir / out});
  };
  EXPECT_THROW(run("gptq int4 g32 effort=best", 1, "none"), Error);
  const QuantReport without = run("gptq int3 g32 effort=best", 1e-9, "without"),
                    with = run("gptq int3 g32 effort=best", 1e4, "with"),
                    free = run("gptq int3 g32 effort=best", 0, "free");
  for (size_t i = 0; i < with.linears.size(); ++i) {
    EXPECT_EQ(without.linears[i].learning_steps, 0) << with.linears[i].name;
    EXPECT_FALSE(without.linears[i].learned) << with.linears[i].name;
    EXPECT_EQ(with.linears[i].learning_steps, kLearningSteps) << with.linears[i].name;
    EXPECT_EQ(with.linears[i].hash, free.linears[i].hash) << with.linears[i].name;
  }
}

TEST(LearnedRounding, IsForThreeBitsAndTheBestEffort) {
  const auto learns = [](const char* recipe) { return resolve(parse_recipe(recipe)).learns_rounding(); };
  EXPECT_TRUE(learns("gptq int3 g128 effort=best"));
  EXPECT_TRUE(learns("awq+gptq int2 g64 effort=best"));
  EXPECT_FALSE(learns("gptq int4 g128 effort=best"));
  EXPECT_FALSE(learns("gptq int3 g128"));
  EXPECT_FALSE(learns("gptq int3 g128 effort=reference"));
  EXPECT_FALSE(learns("gptq int3 act=full effort=best"));
  EXPECT_FALSE(learns("rtn int3 g128 effort=best"));
}

}  // namespace
}  // namespace fewbit::test
