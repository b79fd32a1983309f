// Whole models against the outputs of the reference implementation (goldens/models), and the engine against
// the runner.
#include <algorithm>
#include <cmath>
#include <set>

#include "src/eval/perplexity.h"
#include "src/model/gguf_writer.h"
#include "src/run/engine.h"
#include "src/run/moe.h"
#include "tests/support/devices.h"
#include "tests/support/support.h"
#include "tests/support/tolerance.h"

namespace fewbit::test {
namespace {

constexpr const char* kModels[] = {"llama",
                                   "llama3-ropescaled-tied",
                                   "qwen3-qknorm",
                                   "mistral-swa",
                                   "qwen2-bias",
                                   "qwen3-moe",
                                   "mixtral",
                                   "gemma2",
                                   "gemma3",
                                   "phi3-fused",
                                   "qwen3-next",
                                   "qwen3.5",
                                   "qwen3.5-moe",
                                   "qwen2-moe",
                                   "seed-oss",
                                   "smollm3",
                                   "exaone4",
                                   "olmo3",
                                   "glm4",
                                   "glm4-moe",
                                   "minimax-m2",
                                   "ernie4_5_moe",
                                   "hunyuan-v1-dense",
                                   "qwen2.5-vl",
                                   "qwen3-vl",
                                   "mistral3",
                                   "gemma4",
                                   "gemma4-moe",
                                   "gpt-oss-bf16",
                                   "gpt-oss-mxfp4",
                                   "deepseek-v3-fp8",
                                   "deepseek-v2-mla",
                                   "deepseek-v3-mla",
                                   "deepseek-v32-topk12",
                                   "glm-moe-dsa",
                                   "glm-moe-dsa-topk12",
                                   "kimi-linear"};

// The families whose names and permutations in GGUF are written.
bool has_gguf(const std::string& model) {
  const auto* end = std::find(std::begin(kModels), std::end(kModels), std::string("phi3-fused")) + 1;
  return std::find(std::begin(kModels), end, model) != end;
}

// Families whose goldens do not meet the limit in bf16 yet, and FP8, whose values times scales bf16 does not hold
// (docs/families.md has the figures).
bool holds_in_bf16(const std::string& model) {
  return model.rfind("gemma4", 0) != 0 && model.rfind("gpt-oss", 0) != 0 && model != "deepseek-v3-fp8";
}

// The goldens of low-bit models are of code times scale, and no input is rounded.
LoadOptions exact_inputs(DType dtype) { return {.dtype = dtype, .weights = Weights::values}; }

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

// The experts of every token in every layer that has some; nothing where none has.
using Choices = std::vector<std::vector<std::set<int32_t>>>;

// A pass op by op: who went where, and the states behind each block.
struct Pass {
  Choices experts;
  std::vector<Tensor> states, keys;  // keys: of every layer that chose some [tokens, top_k], else empty
  double other_keys = 0;             // share of the keys that were chosen elsewhere than in the pass that was imposed
};

bool chooses_keys(const ModelSpec& spec) {
  return std::any_of(spec.kinds.begin(), spec.kinds.end(), [](const auto& ops) { return key_choice_of(ops); });
}

// Share of the entries of `a` that stand in no row of `b`.
double elsewhere(const Tensor& a, const Tensor& b) {
  const int64_t n = a.cols();
  int64_t other = 0;
  for (int64_t i = 0; i < a.numel(); ++i) {
    const int32_t* row = b.as<int32_t>() + i / n * n;
    other += std::find(row, row + n, a.as<int32_t>()[i]) == row + n;
  }
  return static_cast<double>(other) / static_cast<double>(a.numel());
}

// With `imposed` attention looks at the keys that were chosen in that pass.
Pass pass_of(Exec& ex, const Checkpoint& c, std::span<const int32_t> ids, int64_t seqs, DType dtype,
             const Pass* imposed = nullptr) {
  Pass pass;
  Choices& choices = pass.experts;
  choices.assign(static_cast<size_t>(c.spec.layers), std::vector<std::set<int32_t>>(ids.size()));
  if (!has_moe(c.spec)) return pass;
  const EmbeddedTokens in = embed_tokens(ex, c.spec, load_ends(ex, c, {.dtype = dtype}), ids, seqs, dtype);
  const RopeTables ropes(ex, c.spec, in.x.rows() / seqs);
  const SlotBuffers slots(ex, c.spec, in.x.rows(), dtype);
  for (int64_t layer = 0; layer < c.spec.layers; ++layer) {
    const BlockWeights weights = load_block(ex, c, layer, exact_inputs(dtype), nullptr);
    Activations act = slots.bind(in.x, c.spec.kind(layer));
    for (const BlockOp& op : c.spec.block(layer)) {
      if (const Moe* moe = std::get_if<Moe>(&op)) {
        const Routing routing = route_tokens(ex, *moe, weights, act[moe->routed()]);
        const Tensor rows = ex.to_host(routing.rows);
        for (int e = 0; e < moe->experts; ++e)
          for (int64_t i = routing.begin[static_cast<size_t>(e)]; i < routing.begin[static_cast<size_t>(e) + 1]; ++i)
            choices[static_cast<size_t>(layer)][static_cast<size_t>(rows.as<int32_t>()[i])].insert(e);
      }
      run_op(ex, op, weights, ropes, {.seqs = seqs, .positions = in.positions}, act);
      if (std::holds_alternative<KeyChoice>(op) && !act.choice->empty()) {
        pass.keys.push_back(ex.to_host(*act.choice));
        if (!imposed) continue;
        const Tensor& other = imposed->keys[pass.keys.size() - 1];
        pass.other_keys = std::max(pass.other_keys, elsewhere(pass.keys.back(), other));
        ex.copy(other, *act.choice);
      }
    }
    pass.states.push_back(ex.to_host(in.x));
  }
  return pass;
}

// Tokens whose experts in the first `layers` layers are the same in both.
std::vector<bool> same_choices(const Choices& a, const Choices& b, int64_t layers) {
  std::vector<bool> same(a.front().size(), true);
  for (size_t layer = 0; layer < static_cast<size_t>(layers); ++layer)
    for (size_t t = 0; t < same.size(); ++t) same[t] = same[t] && a[layer][t] == b[layer][t];
  return same;
}

// Of every sequence the tokens in front of its first that went elsewhere: a recurrent state hands that on to all
// behind, and so does attention.
std::vector<bool> before_the_first(std::vector<bool> same, int64_t seqs) {
  const size_t len = same.size() / static_cast<size_t>(seqs);
  for (size_t t = 0; t < same.size(); ++t) same[t] = same[t] && (t % len == 0 || same[t - 1]);
  return same;
}

// Those rows of a host tensor, one below the other.
Tensor rows_where(ConstTensorView x, const std::vector<bool>& take) {
  const Tensor all = to_f32(x);
  Tensor some = Tensor::host(DType::f32, {std::count(take.begin(), take.end(), true), all.cols()});
  float* to = some.as<float>();
  for (int64_t r = 0; r < all.rows(); ++r)
    if (take[static_cast<size_t>(r)]) to = std::copy_n(all.as<float>() + r * all.cols(), all.cols(), to);
  return some;
}

// In bf16 a near tie of two experts falls either way: tokens that other experts than in float32 took are left out. A
// near tie of two keys likewise, and every token that has more than top_k keys has one: there attention looks at the
// keys that float32 chose, and the choice is judged by itself.
TEST_P(GoldenModel, HiddenStatesLogitsAndLoss) {
  FEWBIT_GOLDEN_SETUP();
  const Pass exact = pass_of(ex, c, values(ids), seqs, DType::f32);
  std::vector<DType> dtypes{DType::f32};
  if (holds_in_bf16(the_case())) dtypes.push_back(DType::bf16);
  for (const DType dtype : dtypes) {
    const double limit = dtype == DType::f32    ? tol::kLogitsF32
                         : has_state(c.spec)    ? tol::kLogitsBf16Delta
                         : chooses_keys(c.spec) ? tol::kLogitsBf16Chosen
                                                : tol::kLogitsBf16;
    const bool imposes = dtype == DType::bf16 && !exact.keys.empty();
    const Pass bf16 =
        dtype == DType::f32 ? Pass{} : pass_of(ex, c, values(ids), seqs, dtype, imposes ? &exact : nullptr);
    const Choices& chosen = dtype == DType::f32 ? exact.experts : bf16.experts;
    EXPECT_LE(bf16.other_keys, tol::kOtherKeys);
    const bool hands_on = has_state(c.spec) || chooses_keys(c.spec);
    Runner runner(ex, c, exact_inputs(dtype));
    const auto compare = [&](const std::string& name, ConstTensorView x, int64_t layer) {
      const Tensor expected = g.get(name), found = ex.to_host(x);
      const std::vector<bool> same = same_choices(exact.experts, chosen, layer);
      const auto elsewhere = static_cast<double>(std::count(same.begin(), same.end(), false));
      EXPECT_LE(elsewhere / static_cast<double>(same.size()), tol::kReroutedTokens) << name << " " << name_of(dtype);
      const std::vector<bool> judged = hands_on ? before_the_first(same, seqs) : same;
      EXPECT_GT(std::count(judged.begin(), judged.end(), true), 0);
      EXPECT_LE(relative_error(rows_where(found, judged), rows_where(expected.view().reshaped(found.shape()), judged)),
                limit)
          << name << " " << name_of(dtype);
    };
    const int64_t layers = c.spec.layers;
    const auto state = [&](int64_t i, ConstTensorView x) {
      if (i < layers) compare("hidden_" + std::to_string(i), x, i);  // the golden's last is behind the final norm
    };
    Tensor x;
    if (imposes) {
      for (size_t i = 0; i < bf16.states.size(); ++i)
        state(static_cast<int64_t>(i) + 1, x = ex.to_device(bf16.states[i]));
    } else {
      x = runner.hidden(values(ids), seqs, state);
    }
    compare("hidden_" + std::to_string(layers), runner.final_normed(x), layers);
    compare("logits", runner.logits(x), layers);
    if (imposes) continue;
    double sum = 0;
    const std::vector<float> losses = runner.nll(values(ids), seqs);
    for (const float l : losses) sum += l;
    ASSERT_EQ(static_cast<int64_t>(losses.size()), seqs * (len - 1));
    const double expected = g.get("mean_nll").as<float>()[0];
    EXPECT_LE(std::fabs(sum / static_cast<double>(losses.size()) / expected - 1),
              dtype == DType::f32 ? tol::kNll : limit)
        << name_of(dtype);
  }
}

// Names, order of rows, stacked experts, shifted norms and all of the metadata: the same model, and its copy
// back from the file's own config.
TEST_P(GoldenModel, ComesBackFromGguf) {
  FEWBIT_GOLDEN_SETUP();
  if (!has_gguf(the_case())) {
    EXPECT_THROW(write_gguf(c, TempDir() / "m.gguf", {}, {}), Error);
    return;
  }
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
    Engine engine(ex, c, {.load = exact_inputs(DType::f32), .capacity = 32, .prefill_chunk = chunk});
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
                             if (ch == '-' || ch == '.') ch = '_';
                           return name;
                         });

}  // namespace
}  // namespace fewbit::test
