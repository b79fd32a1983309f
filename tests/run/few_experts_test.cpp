// Decode steps of mixtures of experts on a GPU: recorded against eager ones bit for bit, and with the routing on the
// device against that which the host reads.
#include <fmt/format.h>

#include <algorithm>

#include "src/model/synth/synth.h"
#include "src/run/engine.h"
#include "tests/run/demo.h"
#include "tests/support/support.h"
#include "tests/support/tiny_families.h"
#include "tests/support/tolerance.h"

namespace fewbit::test {
namespace {

constexpr int64_t kPrompt = 20;  // more tokens than the few, so that all engines fill their caches alike
constexpr int64_t kSteps = 8;

bool notes_say(const Engine& engine, const std::string& what) {
  return std::ranges::any_of(engine.notes(), [&](const std::string& n) { return n.find(what) != std::string::npos; });
}
std::string notes_of(const Engine& engine) { return fmt::format("{}", fmt::join(engine.notes(), "; ")); }

// `steps` of an engine behind one prompt for all sequences, on the host.
std::vector<Tensor> logits_of(Exec& ex, Engine& engine) {
  const int64_t batch = engine.batch(), vocab = engine.spec().vocab;
  std::vector<int32_t> ids = random_ids(batch * (kPrompt + kSteps), 6);
  for (int32_t& id : ids) id %= static_cast<int32_t>(vocab);
  engine.prefill({ids.data(), static_cast<size_t>(batch * kPrompt)});
  std::vector<Tensor> found;
  for (int64_t i = 0; i < kSteps; ++i) {
    const std::span<const int32_t> next(ids.data() + batch * (kPrompt + i), static_cast<size_t>(batch));
    found.push_back(ex.to_host(engine.decode(ex.to_device(Tensor::host_from<int32_t>(DType::i32, {batch}, next)))));
  }
  return found;
}

void steps_agree(Exec& ex, const Checkpoint& c, int64_t batch, const std::string& what) {
  const auto engine = [&](bool graph, bool few) {
    return Engine(ex, c,
                  {.load = {.dtype = DType::bf16},
                   .batch = batch,
                   .capacity = kPrompt + kSteps,
                   .graph = graph,
                   .few_experts = few});
  };
  Engine recorded = engine(true, true), eager = engine(false, true), by_host = engine(true, false);
  EXPECT_TRUE(notes_say(recorded, "are recorded")) << what << ": " << notes_of(recorded);
  EXPECT_TRUE(notes_say(by_host, "not recorded")) << what << ": " << notes_of(by_host);
  const std::vector<Tensor> a = logits_of(ex, recorded), b = logits_of(ex, eager), host = logits_of(ex, by_host);
  int far = 0;  // a near tie of two experts falls either way
  std::string errors;
  for (size_t i = 0; i < a.size(); ++i) {
    EXPECT_EQ(first_difference(a[i], b[i]), "") << what << ", step " << i;
    const double error = relative_error(a[i], host[i]);
    far += error > tol::kLogitsBf16;
    errors += fmt::format(" {:.4f}", error);
  }
  EXPECT_LE(far, tol::kReroutedTokens * kSteps) << what << ", errors of the steps" << errors;
}

TEST(FewExpertsSteps, CudaOfEveryKindOfWeights) {
  FEWBIT_NEEDS_GPU();
  Exec ex = Exec::cuda(0);
  for (const char* format : {"bf16", "marlin", "fp8"}) {
    const TempDir dir;
    synthesize(dir.path() / "m", {.preset = "tiny-moe", .format = format}, {});
    for (const int64_t batch : {1, 3, 16}) steps_agree(ex, Checkpoint::open(dir.path() / "m"), batch, format);
  }
}

// Biases, shared experts, groups of experts, sigmoid scores, weighted inputs, chosen keys, latent attention, states.
TEST(FewExpertsSteps, CudaOfTheFamilies) {
  FEWBIT_NEEDS_GPU();
  Exec ex = Exec::cuda(0);
  for (const char* model : {"qwen3-moe", "mixtral", "gpt-oss-bf16", "gpt-oss-mxfp4", "deepseek-v2-mla",
                            "deepseek-v3-mla", "deepseek-v32-topk12", "glm-moe-dsa", "llama4-text", "granitemoe",
                            "qwen3-next", "qwen3.5-moe", "ernie4_5_moe", "minimax-m2"}) {
    const std::string folder = std::string("goldens/models/") + model;
    FEWBIT_NEEDS_REFERENCE(folder + "/config.json");
    const Checkpoint c = Checkpoint::open(reference(folder));
    for (const int64_t batch : {1, 4}) steps_agree(ex, c, batch, fmt::format("{}, {} sequences", model, batch));
  }
}

// Several residual streams, experts that the token says, clamped activations without a slope.
TEST(FewExpertsSteps, CudaOfDeepSeekV4) {
  FEWBIT_NEEDS_GPU();
  Exec ex = Exec::cuda(0);
  const TempDir dir;
  synthesize(dir.path() / "m", {.config = tiny_config_of("DeepseekV4ForCausalLM").dump()}, {});
  const Checkpoint c = Checkpoint::open(dir.path() / "m");
  for (const int64_t batch : {1, 4}) {
    const EngineOptions options{.load = {.dtype = DType::bf16}, .batch = batch, .capacity = kPrompt + kSteps};
    EngineOptions plain = options;
    plain.graph = false;
    Engine recorded(ex, c, options), eager(ex, c, plain);
    EXPECT_TRUE(notes_say(recorded, "are recorded")) << notes_of(recorded);
    const std::vector<Tensor> a = logits_of(ex, recorded), b = logits_of(ex, eager);
    for (size_t i = 0; i < a.size(); ++i) EXPECT_EQ(first_difference(a[i], b[i]), "") << batch << ", step " << i;
  }
}

// What has no kernel for few tokens runs as before, and says so.
TEST(FewExpertsSteps, CudaOthersAreNotRecorded) {
  FEWBIT_NEEDS_GPU();
  FEWBIT_NEEDS_REFERENCE("goldens/models/glm4-moe/config.json");
  Exec ex = Exec::cuda(0);
  const Checkpoint c = Checkpoint::open(reference("goldens/models/glm4-moe"));
  Engine narrow(ex, c, {.load = {.dtype = DType::bf16}, .capacity = kPrompt + kSteps});
  EXPECT_TRUE(notes_say(narrow, "multiple of 32")) << notes_of(narrow);
  EXPECT_EQ(logits_of(ex, narrow).size(), static_cast<size_t>(kSteps));
  const TempDir dir;
  synthesize(dir.path() / "m", {.preset = "tiny-moe"}, {});
  const Checkpoint tiny = Checkpoint::open(dir.path() / "m");
  Engine wide(ex, tiny, {.load = {.dtype = DType::f32}, .capacity = kPrompt + kSteps});
  EXPECT_TRUE(notes_say(wide, "float32 arithmetic")) << notes_of(wide);
  Engine many(ex, tiny, {.load = {.dtype = DType::bf16}, .batch = 17, .capacity = kPrompt + kSteps});
  EXPECT_TRUE(notes_say(many, "more than 16 sequences")) << notes_of(many);
  EXPECT_EQ(logits_of(ex, many).size(), static_cast<size_t>(kSteps));
  many.resize(2, kPrompt + kSteps);
  EXPECT_TRUE(notes_say(many, "are recorded")) << notes_of(many);
  EXPECT_EQ(logits_of(ex, many).size(), static_cast<size_t>(kSteps));
}

}  // namespace
}  // namespace fewbit::test
