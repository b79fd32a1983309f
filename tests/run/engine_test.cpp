// The engine on the demo model of the source tree: the cache against the cacheless runner, batches, limits.
#include "src/run/engine.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "src/eval/perplexity.h"
#include "src/model/synth/synth.h"
#include "tests/run/demo.h"
#include "tests/support/devices.h"
#include "tests/support/support.h"
#include "tests/support/tolerance.h"

namespace fewbit::test {
namespace {

Tensor i32(const std::vector<int32_t>& v) {
  return Tensor::host_from<int32_t>(DType::i32, {static_cast<int64_t>(v.size())}, v);
}

double limit(DType dtype, KvType kv) {
  if (kv == KvType::plain) return dtype == DType::bf16 ? tol::kLogitsBf16 : tol::kLogitsF32;
  if (kv == KvType::int4) return dtype == DType::bf16 ? tol::kLogitsInt4CacheBf16 : tol::kLogitsInt4Cache;
  return dtype == DType::bf16 ? tol::kLogitsQuantizedCacheBf16 : tol::kLogitsQuantizedCache;
}

constexpr KvType kCaches[] = {KvType::plain, KvType::fp8, KvType::fp8_plain, KvType::int8, KvType::int4};

// Logits of every position from `first` on, fed one by one after a prefill, against the runner's.
void decode_equals_runner(Exec& ex, const Checkpoint& c, DType dtype, KvType kv) {
  const std::vector<int32_t> ids = random_ids(40, 1);
  const LoadOptions load{.dtype = dtype, .kv_cache = kv};
  Runner runner(ex, c, load);
  const Tensor x = runner.hidden(ids, 1);
  const Tensor expected = ex.to_host(runner.logits(x));
  Engine engine(ex, c, {.load = load, .capacity = 64, .prefill_chunk = 13});
  Tensor found = ex.to_host(engine.prefill({ids.data(), 30}));
  for (int64_t i = 30;; ++i) {
    const ConstTensorView row = expected.view().row_range(i - 1, i);
    EXPECT_LE(relative_error(found, row), limit(dtype, kv))
        << name_of(dtype) << ", " << name_of(kv) << " cache, position " << i - 1;
    if (i == 40) break;
    found = ex.to_host(engine.decode(ex.to_device(i32({ids[static_cast<size_t>(i)]}))));
  }
  EXPECT_EQ(engine.length(), 40);
}

// Three different prompts together give each sequence the logits it gets alone, in prefill and in decode.
void batch_equals_single(Exec& ex, const Checkpoint& c) {
  const DType dtype = DType::f32;
  const int64_t len = 9;
  Engine together(ex, c, {.load = {.dtype = dtype}, .batch = 3, .capacity = 32, .prefill_chunk = 12});
  const std::vector<int32_t> ids = random_ids(3 * len, 2), next = random_ids(3, 3);
  const Tensor prefilled = ex.to_host(together.prefill(ids));
  const Tensor decoded = ex.to_host(together.decode(ex.to_device(i32(next))));
  const Tensor again = ex.to_host(together.decode(ex.to_device(i32(next))));
  Engine alone(ex, c, {.load = {.dtype = dtype}, .capacity = 32});
  for (int64_t b = 0; b < 3; ++b) {
    alone.reset();
    const Tensor step = ex.to_device(i32({next[static_cast<size_t>(b)]}));
    const Tensor p = ex.to_host(alone.prefill({ids.data() + b * len, static_cast<size_t>(len)}));
    EXPECT_LE(relative_error(p, prefilled.view().row_range(b, b + 1)), tol::kLogitsF32) << b;
    EXPECT_LE(relative_error(ex.to_host(alone.decode(step)), decoded.view().row_range(b, b + 1)), tol::kLogitsF32) << b;
    EXPECT_LE(relative_error(ex.to_host(alone.decode(step)), again.view().row_range(b, b + 1)), tol::kLogitsF32) << b;
  }
}

// The recorded step (CUDA; the same code without a recording elsewhere) chooses what the eager one chooses.
void graph_equals_eager(Exec& ex, const Checkpoint& c) {
  std::vector<std::vector<int32_t>> chosen;
  for (const bool graph : {false, true}) {
    Engine engine(ex, c, {.load = {.dtype = DType::f32}, .batch = 2, .capacity = 64, .graph = graph});
    engine.greedy_start(engine.prefill(random_ids(20, 4)));
    std::vector<int32_t>& out = chosen.emplace_back();
    for (int i = 0; i < 20; ++i) {
      for (const int32_t id : engine.greedy_tokens()) out.push_back(id);
      engine.greedy_step();
    }
  }
  EXPECT_EQ(chosen[0], chosen[1]);
}

class EngineOn : public OnDevices {};

TEST_P(EngineOn, DecodeLogitsEqualTheRunners) {
  Exec ex = exec();
  const Checkpoint c = Checkpoint::open(demo());
  for (const DType dtype : {DType::f32, DType::bf16})
    for (const KvType kv : kCaches) decode_equals_runner(ex, c, dtype, kv);
}

TEST_P(EngineOn, AQuantizedCacheChangesLogitsALittle) {
  Exec ex = exec();
  const Checkpoint c = Checkpoint::open(demo());
  const auto logits = [&](KvType kv) {
    Runner runner(ex, c, {.dtype = DType::f32, .kv_cache = kv});
    return ex.to_host(runner.logits(runner.hidden(random_ids(40, 1), 1)));
  };
  const Tensor plain = logits(KvType::plain);
  const auto error = [&](KvType kv) { return relative_error(logits(kv), plain); };
  const double fp8 = error(KvType::fp8), int8 = error(KvType::int8), as_they_are = error(KvType::fp8_plain);
  EXPECT_GT(int8, tol::kLogitsF32);
  EXPECT_GT(fp8, int8);
  EXPECT_NE(as_they_are, fp8);
  EXPECT_LT(fp8, tol::kLogitsFp8Cache);
  EXPECT_LT(as_they_are, tol::kLogitsFp8Cache);
  EXPECT_GT(error(KvType::int4), fp8);
  EXPECT_LT(error(KvType::int4), tol::kLogitsInt4Values);
}

TEST_P(EngineOn, BatchesOfOneAndThreeAgree) {
  Exec ex = exec();
  batch_equals_single(ex, Checkpoint::open(demo()));
}

TEST_P(EngineOn, GraphAndEagerStepsAgree) {
  Exec ex = exec();
  graph_equals_eager(ex, Checkpoint::open(demo()));
}

// A model of the form that decode_layers() takes: its steps in one launch, and with attention apart, against those op
// by op, and recorded against eager ones bit for bit.
void one_launch_equals_op_by_op(const std::string& format, double plain_limit, double quantized_limit) {
  Exec ex = Exec::cuda(0);
  const TempDir dir;
  synthesize(dir.path() / "m", {.preset = "llama-1b", .format = format, .layers = 3}, {});
  const Checkpoint c = Checkpoint::open(dir.path() / "m");
  const std::vector<int32_t> ids = random_ids(70, 5);
  for (const KvType kv : {KvType::plain, KvType::fp8, KvType::int8}) {
    const LoadOptions load{.dtype = DType::bf16, .kv_cache = kv};
    const auto engine = [&](bool graph, int64_t long_context) {
      return Engine(ex, c, {.load = load, .capacity = 80, .graph = graph, .long_context = long_context});
    };
    // All of the way in one launch, and from 64 positions on with attention apart.
    Engine together = engine(true, 80), eager = engine(false, 80), crossing = engine(true, 64),
           crossing_eager = engine(false, 64);
    Engine by_op(ex, c, {.load = load, .capacity = 80, .one_launch = false});
    for (Engine* e : {&together, &eager, &crossing, &crossing_eager, &by_op}) e->prefill({ids.data(), 60});
    EXPECT_EQ(by_op.step_launches(), StepLaunches::op_by_op);
    for (size_t i = 60; i < 70; ++i) {
      EXPECT_EQ(together.step_launches(), StepLaunches::together) << together.why_not_together();
      EXPECT_EQ(crossing.step_launches(), i < 64 ? StepLaunches::together : StepLaunches::attention_apart);
      const Tensor next = ex.to_device(i32({ids[i]}));
      const Tensor ops = ex.to_host(by_op.decode(next));
      for (auto [recorded, plain] : {std::pair{&together, &eager}, {&crossing, &crossing_eager}}) {
        const std::string what = fmt::format("{}, {}, position {}", name_of(recorded->step_launches()), name_of(kv), i);
        const Tensor a = ex.to_host(recorded->decode(next)), b = ex.to_host(plain->decode(next));
        EXPECT_EQ(first_difference(a, b), "") << what;
        EXPECT_LE(relative_error(a, ops), kv == KvType::plain ? plain_limit : quantized_limit) << what;
      }
    }
    EXPECT_NE(crossing.why_not_together().find("64 positions"), std::string::npos) << crossing.why_not_together();
    crossing.reset();  // back to the one launch, whose recording is still there
    crossing.prefill({ids.data(), 60});
    EXPECT_EQ(crossing.step_launches(), StepLaunches::together);
    together.reset();
    together.prefill({ids.data(), 60});
    const Tensor next = ex.to_device(i32({ids[60]}));
    EXPECT_EQ(first_difference(ex.to_host(crossing.decode(next)), ex.to_host(together.decode(next))), "")
        << name_of(kv);
  }
}

TEST(Engine, CudaOneLaunchEqualsOpByOp) {
  FEWBIT_NEEDS_GPU();
  one_launch_equals_op_by_op("marlin", tol::kLogitsBf16, tol::kLogitsQuantizedCacheBf16);
}

TEST(Engine, CudaSeveralSequencesGoOpByOp) {
  FEWBIT_NEEDS_GPU();
  Exec ex = Exec::cuda(0);
  const TempDir dir;
  synthesize(dir.path() / "m", {.preset = "llama-1b", .format = "marlin", .layers = 1}, {});
  const Checkpoint c = Checkpoint::open(dir.path() / "m");
  Engine engine(ex, c, {.load = {.dtype = DType::bf16}, .batch = 2, .capacity = 32});
  EXPECT_EQ(engine.step_launches(), StepLaunches::op_by_op);
  EXPECT_EQ(engine.why_not_together(), "one sequence only");
  engine.resize(1, 32);
  EXPECT_EQ(engine.step_launches(), StepLaunches::together) << engine.why_not_together();
  engine.resize(2, 32);
  EXPECT_EQ(engine.step_launches(), StepLaunches::op_by_op);
}

TEST(Engine, CudaOneLaunchEqualsOpByOpInBytes) {
  FEWBIT_NEEDS_GPU();
  one_launch_equals_op_by_op("fp8", tol::kLogitsBytesBf16, tol::kLogitsBytesBf16);
}

INSTANTIATE_TEST_SUITE_P(Devices, EngineOn, every_device(), device_name);

// What the limit of bf16 through codes comes from: the rounding of bf16 alone, on one device in one order.
TEST(Runner, Bf16StaysNearFloat32ThroughEveryCache) {
  Exec ex = Exec::cpu();
  const Checkpoint c = Checkpoint::open(demo());
  const std::vector<int32_t> ids = random_ids(40, 1);
  for (const KvType kv : kCaches) {
    const auto logits = [&](DType dtype) {
      Runner runner(ex, c, {.dtype = dtype, .kv_cache = kv});
      return ex.to_host(runner.logits(runner.hidden(ids, 1)));
    };
    const Tensor rounded = logits(DType::bf16), exact = logits(DType::f32);
    for (int64_t i = 0; i < 40; ++i)
      EXPECT_LE(relative_error(rounded.view().row_range(i, i + 1), exact.view().row_range(i, i + 1)),
                limit(DType::bf16, kv))
          << name_of(kv) << " cache, position " << i;
  }
}

TEST(Engine, RefusesWhatDoesNotFit) {
  Exec ex = Exec::cpu();
  const Checkpoint c = Checkpoint::open(demo());
  Engine engine(ex, c, {.capacity = 8});
  EXPECT_THROW(engine.prefill(random_ids(9, 1)), Error);
  EXPECT_THROW(engine.prefill({}), Error);
  EXPECT_THROW(engine.prefill(std::vector<int32_t>{1, 4096}), Error);
  engine.greedy_start(engine.prefill(random_ids(8, 1)));
  EXPECT_THROW(engine.greedy_step(), Error);
  engine.reset();
  EXPECT_EQ(engine.length(), 0);
  engine.prefill(random_ids(8, 1));
}

TEST(Engine, CountsTheBytesOfAStep) {
  Exec ex = Exec::cpu();
  const Checkpoint c = Checkpoint::open(demo());
  Engine engine(ex, c, {.load = {.dtype = DType::bf16}, .capacity = 8});
  EXPECT_EQ(engine.weight_bytes_per_token(), 2 * parameter_count(c.spec));  // tied: the head is the embedding
  EXPECT_EQ(engine.kv_bytes_per_token(10), 2 * 4 * 128 * 10 * 2);           // k and v, 4 layers, 2 heads of 64, bf16
  const auto kv_bytes = [&](KvType kv) {
    return Engine(ex, c, {.load = {.dtype = DType::bf16, .kv_cache = kv}, .capacity = 8}).kv_bytes_per_token(10);
  };
  EXPECT_EQ(kv_bytes(KvType::fp8), 2 * 4 * 128 * 10);
  EXPECT_EQ(kv_bytes(KvType::int8), 2 * 4 * 2 * (64 + 4) * 10);  // a scale for each of the two heads
  EXPECT_EQ(kv_bytes(KvType::int4), 2 * 4 * 2 * (32 + 4) * 10);  // half a byte; a scale and a center in bf16
  EXPECT_EQ(engine.kernel_table(), (std::vector<std::string>{"28 x dense", "1 x dense head"}));
  EXPECT_EQ(engine.step_launches(), StepLaunches::op_by_op);
  EXPECT_NE(engine.why_not_together().find("CPU"), std::string::npos) << engine.why_not_together();
}

Engine with_head(Exec& ex, const Checkpoint& c, HeadType head) {
  return Engine(ex, c, {.load = {.dtype = DType::bf16, .head = head}, .capacity = 48});
}

// The logits of a prompt and a step under every head against those of the stored one: near where it is rounded, the
// same where it is not; and what a step reads.
void heads_agree(Exec& ex, const Checkpoint& c) {
  std::vector<int32_t> ids = random_ids(30, 3);
  for (int32_t& id : ids) id %= static_cast<int32_t>(c.spec.vocab);
  const auto logits_of = [&](Engine& engine) {
    std::vector<Tensor> found;
    found.push_back(ex.to_host(engine.prefill({ids.data(), 29})));
    found.push_back(ex.to_host(engine.decode(ex.to_device(i32({ids[29]})))));
    return found;
  };
  Engine stored = with_head(ex, c, HeadType::stored);
  const std::vector<Tensor> truth = logits_of(stored);
  const int64_t weights = c.spec.vocab * c.spec.hidden;
  const auto saved = [&](const Engine& e) { return stored.weight_bytes_per_token() - e.weight_bytes_per_token(); };
  for (const HeadType head : {HeadType::dense, HeadType::fp8, HeadType::int4}) {
    Engine engine = with_head(ex, c, head);
    const std::vector<Tensor> found = logits_of(engine);
    for (size_t i = 0; i < found.size(); ++i) {
      const double error = relative_error(found[i], truth[i]);
      EXPECT_EQ(error > 1e-3, head != HeadType::dense) << "rounded: " << name_of(head) << ", error " << error;
      EXPECT_LE(error, head == HeadType::int4 ? tol::kLogitsInt4Head : tol::kLogitsFp8Head) << name_of(head);
    }
    const std::string kind = engine.kernel_table().back();
    if (head == HeadType::dense) {
      EXPECT_EQ(kind, "1 x dense head");
      EXPECT_EQ(saved(engine), 0);
      EXPECT_TRUE(engine.notes().empty());
    } else if (head == HeadType::fp8) {
      EXPECT_EQ(kind, "1 x fp8a16 head");
      EXPECT_EQ(saved(engine), weights - 4 * c.spec.vocab);
      EXPECT_EQ(engine.notes().size(), 1u);
    } else {
      EXPECT_EQ(kind, ex.on_cuda() ? "1 x marlin4 head" : "1 x row4 head");
      EXPECT_GT(saved(engine), weights);
    }
  }
}

TEST_P(EngineOn, ARoundedHeadIsNearTheStoredOne) {
  Exec ex = exec();
  heads_agree(ex, Checkpoint::open(demo()));  // tied
  const TempDir dir;
  synthesize(dir.path() / "m", {.preset = "tiny"}, {});
  heads_agree(ex, Checkpoint::open(dir.path() / "m"));
}

// Wide enough for the kernels that stream weights, with more outputs than are rounded at once.
TEST(Engine, CudaARoundedHeadOfManyOutputs) {
  FEWBIT_NEEDS_GPU();
  Exec ex = Exec::cuda(0);
  const TempDir dir;
  synthesize(dir.path() / "m", {.preset = "phi3-mini", .layers = 1}, {});
  heads_agree(ex, Checkpoint::open(dir.path() / "m"));
}

TEST(Engine, RefusesToRoundAHeadTwiceOrForFloat32) {
  Exec ex = Exec::cpu();
  const Checkpoint c = Checkpoint::open(demo());
  const auto refusal = [&](const Checkpoint& model, const LoadOptions& load) -> std::string {
    try {
      Engine(ex, model, {.load = load, .capacity = 8});
    } catch (const Error& e) {
      return e.what();
    }
    return "";
  };
  EXPECT_NE(refusal(c, {.dtype = DType::f32, .head = HeadType::fp8}).find("float32"), std::string::npos);
  EXPECT_EQ(refusal(c, {.dtype = DType::f32, .head = HeadType::dense}), "");
}

TEST(Engine, AStepReadsOnlyTheExpertsThatItsTokensCanGoTo) {
  FEWBIT_NEEDS_REFERENCE("goldens/models/qwen3-moe/config.json");
  Exec ex = Exec::cpu();
  const Checkpoint c = Checkpoint::open(reference("goldens/models/qwen3-moe"));
  const auto bytes = [&](int64_t batch) {
    return Engine(ex, c, {.load = {.dtype = DType::bf16}, .batch = batch, .capacity = 8}).weight_bytes_per_token();
  };
  const int64_t expert = 2 * 3 * 2 * 128 * 128;  // in both layers, bf16
  EXPECT_EQ(bytes(2) - bytes(1), 2 * expert);    // of 8 experts, 2 a token
  EXPECT_EQ(bytes(4) - bytes(1), 6 * expert);
  EXPECT_EQ(bytes(5), bytes(4));
}

}  // namespace
}  // namespace fewbit::test
