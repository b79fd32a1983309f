// Divergence of whole models: of a model with itself, through the cache, by hand on logits that are given,
// and layer by layer.
#include "src/eval/divergence.h"

#include <cmath>
#include <fstream>

#include "src/eval/layers.h"
#include "tests/support/devices.h"
#include "tests/support/support.h"
#include "tests/support/tolerance.h"

namespace fewbit::test {
namespace {

const std::string kModel = "goldens/models/qwen3-qknorm";

ScoredWindows some_windows(const Checkpoint& c) {
  std::vector<int32_t> ids;
  for (int i = 0; i < 4 * 24; ++i) ids.push_back((i * 29 + 5) % static_cast<int>(c.spec.vocab));
  return ScoredWindows(windows_from_ids(ids, 4, 24, "ids"));
}

// Logits that are the same in every row.
LogitSource constant(Exec& ex, std::vector<float> row) {
  return {static_cast<int64_t>(row.size()), [&ex, row](int64_t, int64_t) -> BatchLogits {
            return [&ex, row](int64_t begin, int64_t end) {
              Tensor t = Tensor::host(DType::f32, {end - begin, static_cast<int64_t>(row.size())});
              for (int64_t r = 0; r < end - begin; ++r) std::copy(row.begin(), row.end(), t.as<float>() + r * t.cols());
              return ex.to_device(t);
            };
          }};
}

TEST(Divergence, ByHand) {
  Exec ex = Exec::cpu();
  const auto ln = [](double p) { return static_cast<float>(std::log(p)); };
  const LogitSource base = constant(ex, {ln(0.5), ln(0.2), ln(0.1), ln(0.1), ln(0.05), ln(0.05)}),
                    model = constant(ex, {ln(0.2), ln(0.5), ln(0.1), ln(0.1), ln(0.05), ln(0.05)});
  const ScoredWindows w(windows_from_ids({0, 0, 1, 0, 0, 0}, 2, 3, "ids"));
  const DivergenceResult r = divergence(ex, base, model, w, {.worst = 2});
  const double kl = 0.5 * std::log(2.5) + 0.2 * std::log(0.4);
  EXPECT_NEAR(r.kl.mean, kl, 1e-6);
  EXPECT_NEAR(r.kl.max, kl, 1e-6);
  EXPECT_EQ(r.top1, 0);
  EXPECT_EQ(r.top5, 1);
  // Targets 0, 1 and 0, 0: shifts -0.3, +0.3 and twice -0.3.
  EXPECT_NEAR(r.shift_mean, -0.15, 1e-6);
  EXPECT_NEAR(r.shift_rms, 0.3, 1e-6);
  EXPECT_EQ(r.shifts.at(1), 3) << "-50 … -20 %";
  EXPECT_EQ(r.shifts.at(11), 1) << "+20 … +50 %";
  EXPECT_NEAR(r.ln_ratio, std::log(2.5) / 2, 1e-6);
  EXPECT_NEAR(r.ln_ratio_stderr, std::log(2.5) / 2, 1e-6) << "windows 0 and ln 2.5";
  ASSERT_EQ(r.worst.size(), 2u);
  EXPECT_EQ(r.worst[0].position, 1);
  EXPECT_EQ(r.worst[0].base_top, 0);
  EXPECT_EQ(r.worst[0].model_top, 1);
  EXPECT_NEAR(r.worst[0].base_p, 0.5, 1e-6);
}

FEWBIT_DEVICE_TEST(Divergence, OfAModelWithItselfIsNothing) {
  FEWBIT_NEEDS_REFERENCE(kModel + "/model.safetensors");
  const Checkpoint c = Checkpoint::open(reference(kModel));
  const ScoredWindows w = some_windows(c);

  Runner a(ex, c, {.dtype = DType::f32}), b(ex, c, {.dtype = DType::f32});
  const DivergenceResult r = divergence(ex, logits_from(ex, a, w), logits_from(ex, b, w), w);
  EXPECT_LT(r.kl.max, 1e-6);
  EXPECT_EQ(r.top1, 1);
  EXPECT_EQ(r.top5, 1);
  EXPECT_EQ(r.ln_ratio, 0);
}

TEST(LogitCache, GivesTheLogitsBack) {
  FEWBIT_NEEDS_REFERENCE(kModel + "/model.safetensors");
  const TempDir dir;
  const Checkpoint c = Checkpoint::open(reference(kModel));
  const ScoredWindows w = some_windows(c);
  Exec ex = Exec::cpu();
  Runner runner(ex, c, {.dtype = DType::f32});
  const CacheKey key{fingerprint(c), "float32", "plain"};
  write_logit_cache(ex, dir / "cache", key, logits_from(ex, runner, w), w, 48, {});
  EXPECT_FALSE(std::filesystem::exists(dir / "cache.partial"));
  const DivergenceResult r =
      divergence(ex, logits_from_cache(ex, dir / "cache", key, w), logits_from(ex, runner, w), w, {.batch_tokens = 30});
  EXPECT_LT(r.kl.mean, 1e-7) << "16 bits of a logit are enough";
  EXPECT_EQ(r.top5, 1);
  ScoredWindows other = some_windows(c);
  other.windows.ids[3] += 1;
  EXPECT_THROW(logits_from_cache(ex, dir / "cache", key, other), Error) << "other tokens";
  EXPECT_THROW(logits_from_cache(ex, dir / "cache", {key.model, "bf16", "plain"}, w), Error) << "another arithmetic";
  EXPECT_THROW(logits_from_cache(ex, dir / "nowhere", key, w), Error);
}

TEST(Layers, APerturbedLinearIsFound) {
  FEWBIT_NEEDS_REFERENCE(kModel + "/model.safetensors");
  const TempDir dir;
  const Checkpoint base = Checkpoint::open(reference(kModel));
  // A copy whose second block's up_proj is 1 % off, and whose first v_proj is scaled: the scale is fitted
  // away.
  std::filesystem::copy(reference(kModel + "/config.json"), dir / "config.json");
  auto writer = container_safetensors.create(dir.path(), {});
  const Golden weights(kModel + "/model.safetensors");
  for (const std::string& name : weights.names()) {
    const Tensor t = to_f32(weights.get(name));
    for (int64_t i = 0; i < t.numel(); ++i) {
      if (name == "model.layers.1.mlp.up_proj.weight") t.as<float>()[i] *= i % 2 ? 1.01f : 0.99f;
      if (name == "model.layers.0.self_attn.v_proj.weight") t.as<float>()[i] *= 2;
    }
    writer->add(name, t);
  }
  writer->finish();
  const Checkpoint model = Checkpoint::open(dir.path());
  Exec ex = Exec::cpu();
  const ScoredWindows w = some_windows(base);
  const auto layers = layer_closeness(ex, base, model, {.dtype = DType::f32}, w.windows, 48);
  ASSERT_EQ(static_cast<int64_t>(layers.size()), base.spec.layers);
  const auto of = [&](size_t layer, const std::string& name) {
    for (const LinearCloseness& l : layers[layer].linears)
      if (l.name == name) return l.value.sqnr_db;
    return -1.0;
  };
  EXPECT_GT(of(0, "self_attn.v_proj"), 100);
  EXPECT_GT(of(0, "self_attn.q_proj"), 100);
  EXPECT_LT(layers[0].states.sqnr_db, 60) << "the scaled v reaches the states";
  EXPECT_NEAR(of(1, "mlp.up_proj"), 40, 3) << "1 % is 40 dB";
  EXPECT_GT(of(1, "mlp.gate_proj"), 100) << "on the baseline's states";
  EXPECT_GT(layers[1].alone.sqnr_db, layers[1].states.sqnr_db) << "a block alone is better than what was added up";
}

}  // namespace
}  // namespace fewbit::test
