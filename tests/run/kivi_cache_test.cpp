// A cache of KIVI's form in the engine and in the runner: steps against the whole pass, what is rounded and what is
// not, bytes, and what refuses it.
#include "src/model/synth/synth.h"
#include "src/run/engine.h"
#include "src/run/paged/paged_engine.h"
#include "src/run/plan/step_bytes.h"
#include "tests/run/demo.h"
#include "tests/support/devices.h"
#include "tests/support/support.h"
#include "tests/support/tolerance.h"

namespace fewbit::test {
namespace {

constexpr KvType kKiviTypes[] = {KvType::kivi2, KvType::kivi4};

Tensor kivi_logits(Exec& ex, const Checkpoint& c, const std::vector<int32_t>& ids, KvType kv) {
  Runner runner(ex, c, {.dtype = DType::f32, .kv_cache = kv});
  return ex.to_host(runner.logits(runner.hidden(ids, 1)));
}

class KiviCacheOn : public OnDevices {};
INSTANTIATE_TEST_SUITE_P(Devices, KiviCacheOn, every_device(), device_name);

// A prompt in chunks and steps see what one whole pass sees, at places before, on and behind the ends of groups.
TEST_P(KiviCacheOn, StepsAndChunksAreTheWholePass) {
  Exec ex = exec();
  const Checkpoint c = Checkpoint::open(demo());
  const std::vector<int32_t> ids = random_ids(260, 1);
  for (const KvType kv : kKiviTypes) {
    const Tensor expected = kivi_logits(ex, c, ids, kv);
    Engine engine(ex, c, {.load = {.dtype = DType::f32, .kv_cache = kv}, .capacity = 300, .prefill_chunk = 45});
    Tensor found = ex.to_host(engine.prefill({ids.data(), 150}));
    for (int64_t i = 150;; ++i) {
      EXPECT_LE(relative_error(found, expected.view().row_range(i - 1, i)), tol::kLogitsInt4Cache)
          << name_of(kv) << ", position " << i - 1;
      if (i == 260) break;
      found = ex.to_host(engine.decode(ex.to_device(
          Tensor::host_from<int32_t>(DType::i32, {1}, std::span<const int32_t>(&ids[static_cast<size_t>(i)], 1)))));
    }
    EXPECT_EQ(engine.step_launches(), StepLaunches::op_by_op);
  }
}

// What nobody has coded yet changes nothing; behind the window 2 bits change more than 4.
TEST_P(KiviCacheOn, RoundsBehindTheWindowAlone) {
  Exec ex = exec();
  const Checkpoint c = Checkpoint::open(demo());
  const std::vector<int32_t> ids = random_ids(400, 1);
  const Tensor plain = kivi_logits(ex, c, ids, KvType::plain);
  double error[2];
  for (size_t i = 0; i < 2; ++i) {
    const Tensor found = kivi_logits(ex, c, ids, kKiviTypes[i]);
    EXPECT_LE(relative_error(found.view().row_range(0, 159), plain.view().row_range(0, 159)), tol::kLogitsF32);
    EXPECT_GT(relative_error(found.view().row_range(159, 160), plain.view().row_range(159, 160)), tol::kLogitsF32);
    error[i] = relative_error(found.view().row_range(300, 400), plain.view().row_range(300, 400));
  }
  EXPECT_GT(error[0], 2 * error[1]);
  EXPECT_LT(error[0], tol::kLogitsInt4Values);
}

// The recorded step (CUDA; the same code without a recording elsewhere) chooses what the eager one chooses.
TEST_P(KiviCacheOn, GraphAndEagerStepsAgree) {
  Exec ex = exec();
  const Checkpoint c = Checkpoint::open(demo());
  std::vector<std::vector<int32_t>> chosen;
  for (const bool graph : {false, true}) {
    Engine engine(
        ex, c, {.load = {.dtype = DType::f32, .kv_cache = KvType::kivi2}, .batch = 2, .capacity = 240, .graph = graph});
    engine.greedy_start(engine.prefill(random_ids(2 * 190, 4)));
    std::vector<int32_t>& out = chosen.emplace_back();
    for (int i = 0; i < 40; ++i) {
      for (const int32_t id : engine.greedy_tokens()) out.push_back(id);
      engine.greedy_step();
    }
  }
  EXPECT_EQ(chosen[0], chosen[1]);
}

TEST(KiviCache, BytesAreWhatIsAllocatedAndRead) {
  Exec ex = Exec::cpu();
  const Checkpoint c = Checkpoint::open(demo());  // 4 layers, 2 heads of 64
  const int64_t plain = 4 * 2 * 2 * 64 * 2;
  for (const KvType kv : kKiviTypes) {
    const int64_t bits = kv == KvType::kivi2 ? 3 : 5, coded = 4 * 2 * 2 * 64 * bits / 8;
    EXPECT_EQ(position_bytes(c.spec, kv, DType::bf16), coded);
    const Engine engine(ex, c, {.load = {.dtype = DType::bf16, .kv_cache = kv}, .capacity = 8});
    EXPECT_EQ(engine.kv_bytes_per_token(100), 100 * plain);
    EXPECT_EQ(engine.kv_bytes_per_token(1000), 136 * plain + 864 * coded);
    for (const int64_t capacity : {8, 200, 5000}) {
      int64_t found = 0;
      for (int64_t layer = 0; layer < c.spec.layers; ++layer) {
        const KvStorage s = alloc_kv(ex, *own_attention_of(c.spec.block(layer)), kv, DType::bf16, 1, capacity);
        for (const Tensor* t : {&s.k, &s.v, &s.k_scales, &s.v_scales, &s.k_recent, &s.v_recent}) found += t->bytes();
      }
      EXPECT_EQ(contiguous_cache_bytes(c.spec, {0, 4}, kv, DType::bf16, capacity), found) << capacity;
      EXPECT_EQ(cache_bytes(c.spec, {0, 4}, kv, DType::bf16, capacity, false), found) << capacity;
    }
  }
}

std::string kivi_refusal(const std::function<void()>& f) {
  try {
    f();
  } catch (const Error& e) {
    return e.what();
  }
  return "";
}

TEST(KiviCache, IsRefusedWhereItHasNoForm) {
  Exec ex = Exec::cpu();
  const Checkpoint c = Checkpoint::open(demo());
  const LoadOptions load{.dtype = DType::f32, .kv_cache = KvType::kivi2};
  const std::string pages = kivi_refusal([&] { PagedEngine(ex, c, {.load = load, .pages = 4, .longest = 32}); });
  EXPECT_NE(pages.find("kivi2"), std::string::npos) << pages;
  EXPECT_NE(pages.find("take int4"), std::string::npos) << pages;
  EXPECT_FALSE(Engine(ex, c, {.load = load, .capacity = 8}).decodes_each());
  ModelSpec narrow = c.spec;
  for (BlockOp& op : narrow.kinds[0])
    if (auto* a = std::get_if<Attention>(&op)) a->head_dim = 48;
  const std::string heads = kivi_refusal([&] { check_cache_type(narrow, KvType::kivi4); });
  EXPECT_NE(heads.find("48; expected a multiple of 32"), std::string::npos) << heads;
  const ModelSpec latents = shape_only({.preset = "tiny-latent"}).spec;
  EXPECT_NE(kivi_refusal([&] { check_cache_type(latents, KvType::kivi2); }).find("latents"), std::string::npos);
}

}  // namespace
}  // namespace fewbit::test
