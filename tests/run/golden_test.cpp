// Whole models against the outputs of the reference implementation (goldens/models), and the engine against
// the runner.
#include <cmath>

#include "src/eval/perplexity.h"
#include "src/model/gguf_writer.h"
#include "src/run/engine.h"
#include "src/run/moe.h"
#include "tests/support/devices.h"
#include "tests/support/support.h"
#include "tests/support/tolerance.h"

namespace fewbit::test {
namespace {

constexpr const char* kModels[] = {"llama",        "llama3-ropescaled-tied",
                                   "qwen3-qknorm", "mistral-swa",
                                   "qwen2-bias",   "qwen3-moe",
                                   "mixtral",      "gemma2",
                                   "gemma3",       "phi3-fused"};

class GoldenModel : public CasesOnDevices<const char*> {
 protected:
  std::string folder() const { return std::string("goldens/models/") + the_case(); }
  Golden golden() const { return Golden(folder() + "/golden.safetensors"); }
  Checkpoint checkpoint() const { return Checkpoint::open(reference(folder())); }
};

#define FEWBIT_GOLDEN_SETUP()                               \
  FEWBIT_NEEDS_REFERENCE(folder() + "/golden.safetensors"); \
  Exec ex = exec();                                         \
  const Golden g = golden();                                \
  const Checkpoint c = checkpoint();                        \
  const Tensor ids = g.get("input_ids");                    \
  const int64_t seqs = ids.shape()[0], len = ids.shape()[1];

std::span<const int32_t> values(const Tensor& t) { return {t.as<int32_t>(), static_cast<size_t>(t.numel())}; }

// Share of the tokens whose row is off by more than `limit`.
double wrong_tokens(ConstTensorView found, ConstTensorView expected, double limit) {
  const Tensor a = to_f32(found), b = to_f32(expected);
  int64_t wrong = 0;
  for (int64_t t = 0; t < a.rows(); ++t)
    wrong += !(relative_error(a.view().row_range(t, t + 1), b.view().row_range(t, t + 1)) <= limit);
  return static_cast<double>(wrong) / static_cast<double>(a.rows());
}

TEST_P(GoldenModel, HiddenStatesLogitsAndLoss) {
  FEWBIT_GOLDEN_SETUP();
  for (const DType dtype : {DType::f32, DType::bf16}) {
    const double limit = dtype == DType::f32 ? tol::kLogitsF32 : tol::kLogitsBf16;
    Runner runner(ex, c, {.dtype = dtype});
    const auto compare = [&](const std::string& name, ConstTensorView x) {
      const Tensor expected = g.get(name);
      const Tensor found = ex.to_host(x);
      if (dtype == DType::bf16 && has_moe(c.spec)) {  // a near tie of two experts falls either way
        EXPECT_LE(wrong_tokens(found, expected.view().reshaped(found.shape()), limit), tol::kReroutedTokens) << name;
        return;
      }
      EXPECT_LE(relative_error(found.view().reshaped(expected.shape()), expected), limit)
          << name << " " << name_of(dtype);
    };
    const int64_t layers = c.spec.layers;
    const Tensor x = runner.hidden(values(ids), seqs, [&](int64_t i, ConstTensorView state) {
      if (i < layers) compare("hidden_" + std::to_string(i), state);  // the golden's last one is behind the final norm
    });
    compare("hidden_" + std::to_string(layers), runner.final_normed(x));
    compare("logits", runner.logits(x));
    double sum = 0;
    const std::vector<float> losses = runner.nll(values(ids), seqs);
    for (const float l : losses) sum += l;
    ASSERT_EQ(static_cast<int64_t>(losses.size()), seqs * (len - 1));
    const double expected = g.get("mean_nll").as<float>()[0];
    EXPECT_LE(std::fabs(sum / static_cast<double>(losses.size()) / expected - 1), limit) << name_of(dtype);
  }
}

// Names, order of rows, stacked experts, shifted norms and all of the metadata: the same model, and its copy
// back from the file's own config.
TEST_P(GoldenModel, ComesBackFromGguf) {
  FEWBIT_GOLDEN_SETUP();
  const TempDir dir;
  const auto logits_of = [&](const Checkpoint& model) {
    Runner runner(ex, model, {.dtype = DType::f32});
    return ex.to_host(runner.logits(runner.hidden(values(ids), seqs)));
  };
  write_gguf(c, dir / "m.gguf", {}, {});
  const Checkpoint read = Checkpoint::open(dir / "m.gguf");
  EXPECT_EQ(read.format, "gguf");
  EXPECT_EQ(read.spec.arch, c.spec.arch == "MistralForCausalLM" ? "LlamaForCausalLM" : c.spec.arch);
  const Tensor here = logits_of(c), there = logits_of(read);
  if (the_case() == std::string("mistral-swa")) {  // cut to its window, and no longer the same beyond
    EXPECT_EQ(read.spec.max_positions, 16);
    const auto first = [&](const Tensor& t) { return t.view().row_range(0, 16); };
    EXPECT_LE(relative_error(first(there), first(here)), tol::kLogitsF32);
    return;
  }
  EXPECT_LE(relative_error(there, here), tol::kLogitsF32);
  EXPECT_EQ(len, 48);
}

TEST_P(GoldenModel, GreedyContinuation) {
  FEWBIT_GOLDEN_SETUP();
  const Tensor expected = g.get("greedy_from_first16");
  const std::span<const int32_t> prompt = values(ids).subspan(0, 16);
  for (const int64_t chunk : {int64_t{2048}, int64_t{5}}) {
    Engine engine(ex, c, {.load = {.dtype = DType::f32}, .capacity = 32, .prefill_chunk = chunk});
    engine.greedy_start(engine.prefill(prompt));
    std::vector<int32_t> found(prompt.begin(), prompt.end());
    for (int i = 0; i < 16; ++i) {
      found.push_back(engine.greedy_tokens().front());
      if (i < 15) engine.greedy_step();
    }
    EXPECT_EQ(found, std::vector<int32_t>(values(expected).begin(), values(expected).end())) << "prefill by " << chunk;
  }
  EXPECT_EQ(len, 48);
  EXPECT_EQ(seqs, 2);
}

INSTANTIATE_TEST_SUITE_P(All, GoldenModel, ::testing::Combine(::testing::ValuesIn(kModels), every_device()),
                         [](const auto& info) {
                           std::string name = std::string(std::get<0>(info.param)) + "_" + std::get<1>(info.param);
                           for (char& ch : name)
                             if (ch == '-') ch = '_';
                           return name;
                         });

}  // namespace
}  // namespace fewbit::test
