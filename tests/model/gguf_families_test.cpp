// Models as GGUF files, written and read back, tensor by tensor and op by op: the goldens of every family whose files
// are written, and random weights of all families.
#include <cmath>
#include <tuple>

#include "src/model/archs.h"
#include "src/model/checkpoint.h"
#include "src/model/gguf/writer.h"
#include "src/model/synth/synth.h"
#include "tests/support/support.h"
#include "tests/support/tiny_families.h"
#include "tests/support/tolerance.h"

namespace fewbit::test {
namespace {

// Both specs list what they have in one order, whatever the names.
void expect_same_values(const Checkpoint& after, const Checkpoint& before) {
  const auto dense = dense_tensors_of(before.spec), dense_there = dense_tensors_of(after.spec);
  ASSERT_EQ(dense.size(), dense_there.size());
  for (size_t i = 0; i < dense.size(); ++i)
    if (dense[i].name.ends_with("A_log"))  // the file has -exp of it
      EXPECT_LE(relative_error(to_f32(after.store.get(dense_there[i].name)), to_f32(before.store.get(dense[i].name))),
                tol::kF32Op)
          << dense[i].name;
    else
      EXPECT_EQ(first_difference(to_f32(after.store.get(dense_there[i].name)), to_f32(before.store.get(dense[i].name))),
                "")
          << dense[i].name;
  const auto linears = linears_of(before.spec), linears_there = linears_of(after.spec);
  ASSERT_EQ(linears.size(), linears_there.size());
  for (size_t i = 0; i < linears.size(); ++i)
    EXPECT_EQ(first_difference(after.store.get(linears_there[i].name + ".weight"),
                               before.store.get(linears[i].name + ".weight")),
              "")
        << linears[i].name;
  EXPECT_GE(dense.size() + linears.size(), 15u);
}

void expect_same_rotation(const RopeParams& a, const RopeParams& b) {
  EXPECT_EQ(a.attention_scale, b.attention_scale);
  ASSERT_EQ(a.inv_freq.size(), b.inv_freq.size());
  for (size_t i = 0; i < a.inv_freq.size(); ++i)
    if (b.inv_freq[i] == 0)
      EXPECT_EQ(a.inv_freq[i], 0) << i;
    else
      EXPECT_LE(std::fabs(a.inv_freq[i] / b.inv_freq[i] - 1), tol::kF32Op) << i;
}

void expect_close(float a, float b) { EXPECT_LE(std::fabs(a - b), tol::kF32Op * std::fabs(b)); }

void expect_same_attention(const Attention& a, const Attention& b, int64_t layer) {
  expect_close(a.scale, b.scale);
  EXPECT_EQ(std::tie(a.window, a.softcap, a.chunk, a.keys_of_layer, a.heads, a.kv_heads, a.head_dim),
            std::tie(b.window, b.softcap, b.chunk, b.keys_of_layer, b.heads, b.kv_heads, b.head_dim))
      << layer;
}

// The ops that few families have.
void expect_same_mixers(const BlockOp& there, const BlockOp& here) {
  if (const auto* b = std::get_if<LatentAttention>(&here)) {
    const auto& a = std::get<LatentAttention>(there);
    expect_close(a.scale, b->scale);
    EXPECT_EQ(std::tie(a.heads, a.nope, a.rope, a.value, a.rank, a.chosen),
              std::tie(b->heads, b->nope, b->rope, b->value, b->rank, b->chosen));
  } else if (const auto* b = std::get_if<KeyChoice>(&here)) {
    const auto& a = std::get<KeyChoice>(there);
    EXPECT_EQ(std::tie(a.heads, a.head_dim, a.top_k), std::tie(b->heads, b->head_dim, b->top_k));
  } else if (const auto* b = std::get_if<PositionScale>(&here)) {
    const auto& a = std::get<PositionScale>(there);
    EXPECT_EQ(std::tie(a.factor, a.every, a.shift), std::tie(b->factor, b->every, b->shift));
  } else if (const auto* b = std::get_if<StateScan>(&here)) {
    const auto& a = std::get<StateScan>(there);
    EXPECT_EQ(std::tie(a.heads, a.groups, a.head_dim, a.state), std::tie(b->heads, b->groups, b->head_dim, b->state));
  } else if (const auto* b = std::get_if<AddTo>(&here)) {
    expect_close(std::get<AddTo>(there).factor, b->factor);
  }
}

// What the ops of every layer compute beside their weights.
void expect_same_ops(const ModelSpec& after, const ModelSpec& before) {
  ASSERT_EQ(after.layers, before.layers);
  EXPECT_EQ(after.tied(), before.tied());
  EXPECT_EQ(parameter_count(after), parameter_count(before));
  EXPECT_EQ(after.logit_softcap, before.logit_softcap);
  expect_close(after.logit_scale, before.logit_scale);
  expect_close(after.embed_scale, before.embed_scale);
  for (int64_t layer = 0; layer < before.layers; ++layer) {
    const auto &there = after.block(layer), &here = before.block(layer);
    ASSERT_EQ(there.size(), here.size()) << layer;
    for (size_t i = 0; i < here.size(); ++i) {
      ASSERT_EQ(there[i].index(), here[i].index());
      if (const auto* b = std::get_if<Rope>(&here[i])) {
        const auto& a = std::get<Rope>(there[i]);
        EXPECT_EQ(a.neighbours, b->neighbours);
        expect_same_rotation(a.params, b->params);
      } else if (const auto* n = std::get_if<Norm>(&here[i])) {
        EXPECT_EQ(std::get<Norm>(there[i]).eps, n->eps);
      } else if (const auto* b = std::get_if<Attention>(&here[i])) {
        expect_same_attention(std::get<Attention>(there[i]), *b, layer);
      } else if (const auto* b = std::get_if<Moe>(&here[i])) {
        const auto& a = std::get<Moe>(there[i]);
        EXPECT_EQ(std::tie(a.top_k, a.renormalise, a.score, a.scaling, a.groups, a.best_groups, a.judges,
                           a.swiglu_limit, a.weigh_inputs),
                  std::tie(b->top_k, b->renormalise, b->score, b->scaling, b->groups, b->best_groups, b->judges,
                           b->swiglu_limit, b->weigh_inputs));
      } else {
        expect_same_mixers(there[i], here[i]);
      }
    }
  }
}

class GgufModel : public ::testing::TestWithParam<const char*> {};

TEST_P(GgufModel, ComesBackBitForBit) {
  const std::string folder = std::string("goldens/models/") + GetParam();
  FEWBIT_NEEDS_REFERENCE(folder);
  TempDir dir;
  const Checkpoint before = Checkpoint::open(reference(folder));
  write_gguf(before, dir / "m.gguf", {}, {});
  const Checkpoint after = Checkpoint::open(dir.path());
  EXPECT_EQ(after.format, "gguf");
  if (GetParam() != std::string("mistral-swa")) expect_same_ops(after.spec, before.spec);  // cut to its window
  expect_same_values(after, before);
}

std::string word_of(std::string name) {
  for (char& c : name)
    if (!std::isalnum(static_cast<unsigned char>(c))) c = '_';
  return name;
}

INSTANTIATE_TEST_SUITE_P(All, GgufModel,
                         ::testing::Values("granite", "granite4", "cohere", "olmo2", "ernie4_5", "llama",
                                           "llama3-ropescaled-tied", "mistral-swa", "qwen3-qknorm", "qwen3-moe",
                                           "mixtral", "gemma2", "gemma3", "phi3-fused", "seed-oss", "smollm3", "olmo3",
                                           "glm4", "glm4-moe", "minimax-m2", "ernie4_5_moe", "hunyuan-v1-dense",
                                           "qwen2.5-vl", "qwen3-vl", "mistral3", "qwen3-next", "qwen3.5", "qwen3.5-moe",
                                           "ministral3", "granitemoe", "cohere2", "lfm2", "deepseek-v2-mla",
                                           "deepseek-v3-mla", "deepseek-v32-topk12", "glm-moe-dsa", "kimi-linear",
                                           "gemma4", "gemma4-moe", "gemma4-e2b", "gemma3-vision", "qwen3-vl-moe"),
                         [](const auto& info) { return word_of(info.param); });

// Random weights of every family whose files are written.
class GgufFamilies : public ::testing::TestWithParam<const Family*> {};

TEST_P(GgufFamilies, ComeBackBitForBit) {
  const Family& family = *GetParam();
  const TempDir dir;
  synthesize(dir / "m", {.config = tiny_config_of(family.name()).dump()}, {});
  const Checkpoint before = Checkpoint::open(dir / "m");
  if (family.gguf.arch.empty()) {
    EXPECT_FALSE(family.gguf.why_not.empty());
    const std::string refused = message_of([&] { write_gguf(before, dir / "m.gguf", {}, {}); }, ErrorKind::unsupported);
    EXPECT_NE(refused.find(family.name()), std::string::npos) << refused;
    EXPECT_NE(refused.find(family.gguf.why_not), std::string::npos) << refused;
    return;
  }
  write_gguf(before, dir / "m.gguf", {}, {});
  const Checkpoint after = Checkpoint::open(dir / "m.gguf");
  EXPECT_EQ(after.format, "gguf");
  expect_same_ops(after.spec, before.spec);
  expect_same_values(after, before);
  write_gguf(after, dir / "again.gguf", {}, {});  // what the file's own config says is the same file
  EXPECT_EQ(first_difference(after.store.get(dense_tensors_of(after.spec)[1].name),
                             Checkpoint::open(dir / "again.gguf").store.get(dense_tensors_of(after.spec)[1].name)),
            "");
}

INSTANTIATE_TEST_SUITE_P(All, GgufFamilies, ::testing::ValuesIn(families()),
                         [](const auto& info) { return word_of(std::string(info.param->name())); });

}  // namespace
}  // namespace fewbit::test
