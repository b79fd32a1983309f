// Perplexity of models whose losses are known without a computer.
#include "src/eval/perplexity.h"

#include <cmath>
#include <fstream>

#include "src/model/archs.h"
#include "tests/support/support.h"
#include "tests/support/tolerance.h"

namespace fewbit::test {
namespace {

constexpr const char* kConfig =
    R"({"architectures": ["LlamaForCausalLM"], "hidden_size": 8, "intermediate_size": 8,
  "num_hidden_layers": 1, "num_attention_heads": 1, "vocab_size": 4, "rms_norm_eps": 1e-6, "hidden_act": "silu",
  "max_position_embeddings": 64})";

// A model whose blocks are zero and whose embedding is one direction for every token, so that each position
// has the same logits: what the head makes of that direction.
std::filesystem::path constant_model(const TempDir& dir, const std::vector<float>& head_logits) {
  std::ofstream(dir / "config.json") << kConfig;
  const ModelSpec spec = build_spec(ConfigView::parse(kConfig, "config.json"));
  auto writer = container_safetensors.create(dir.path(), {});
  for (const NamedDense& t : dense_tensors_of(spec)) {
    Tensor value = Tensor::host_zeros(DType::f32, t.shape);
    for (int64_t i = 0; i < value.numel(); ++i) {
      if (t.name == spec.embed) value.as<float>()[i] = i % 8 == 0 ? 3.f : 0.f;
      if (t.name == spec.final_norm) value.as<float>()[i] = 1.f / std::sqrt(8.f);  // the normed state is (1, 0, …)
      if (t.name == spec.lm_head) value.as<float>()[i] = i % 8 == 0 ? head_logits[static_cast<size_t>(i / 8)] : 0.f;
    }
    writer->add(t.name, value);
  }
  for (const NamedLinear& l : linears_of(spec))
    writer->add(l.name + ".weight", Tensor::host_zeros(DType::f32, {l.out, l.in}));
  writer->finish();
  return dir.path();
}

TEST(Perplexity, OfAUniformModelIsTheVocabulary) {
  const TempDir dir;
  Exec ex = Exec::cpu();
  Runner runner(ex, Checkpoint::open(constant_model(dir, {0, 0, 0, 0})), {.dtype = DType::f32});
  const Windows w = windows_from_ids({0, 1, 2, 3, 3, 2, 1, 0}, 2, 4, "ids");
  const PerplexityResult r = perplexity(runner, w, 64);
  EXPECT_NEAR(r.perplexity, 4, 4 * tol::kLogitsF32);
  EXPECT_NEAR(r.stderr_, 0, tol::kLogitsF32);
  EXPECT_EQ(r.tokens, 6);
  EXPECT_EQ(r.windows, 2);
  EXPECT_EQ(r.context, 4);
  const PerplexityResult one = perplexity(runner, windows_from_ids({0, 1, 2, 3}, 1, 4, "ids"), 64);
  EXPECT_TRUE(std::isnan(one.stderr_)) << "of one window there is no error";
}

TEST(Perplexity, MeanAndStandardErrorByHand) {
  // Probabilities 1/2, 1/4, 1/8, 1/8: losses are ln 2 times 1, 2, 3, 3.
  const TempDir dir;
  const float ln2 = std::log(2.f);
  Exec ex = Exec::cpu();
  Runner runner(ex, Checkpoint::open(constant_model(dir, {-ln2, -2 * ln2, -3 * ln2, -3 * ln2})), {.dtype = DType::f32});
  // Predicted: (0, 0), (1, 3), (2, 2): window means 1, 2.5 and 3 times ln 2 … the first token of a window is
  // not predicted.
  const Windows w = windows_from_ids({3, 0, 0, 0, 1, 3, 1, 2, 2}, 3, 3, "ids");
  const double means[] = {1 * ln2, 2.5 * ln2, 3 * ln2};
  const double mean = (means[0] + means[1] + means[2]) / 3;
  double squares = 0;
  for (const double m : means) squares += (m - mean) * (m - mean);
  for (const int64_t batch_tokens : {1, 6, 100}) {  // one window, two, all at a time
    std::vector<int64_t> seen;
    const PerplexityResult r =
        perplexity(runner, w, batch_tokens, [&](int64_t done, int64_t) { seen.push_back(done); });
    EXPECT_NEAR(r.mean_nll, mean, mean * tol::kLogitsF32);
    EXPECT_NEAR(r.perplexity, std::exp(mean), std::exp(mean) * tol::kLogitsF32);
    EXPECT_NEAR(r.stderr_, std::exp(mean) * std::sqrt(squares / 2 / 3), tol::kLogitsF32 * 10);
    EXPECT_EQ(seen.back(), 3);
  }
}

TEST(Perplexity, NeedsSomethingToPredict) {
  const TempDir dir;
  Exec ex = Exec::cpu();
  Runner runner(ex, Checkpoint::open(constant_model(dir, {0, 0, 0, 0})), {.dtype = DType::f32});
  EXPECT_THROW(perplexity(runner, windows_from_ids({1, 2}, 2, 1, "ids"), 64), Error);
}

}  // namespace
}  // namespace fewbit::test
