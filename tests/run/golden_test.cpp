// Whole models against the outputs of the reference implementation (goldens/models), and the engine against
// the runner.
#include <algorithm>
#include <cmath>
#include <fstream>

#include "formats/container.h"
#include "kernels/cpu/tile_product.h"
#include "src/eval/perplexity.h"
#include "src/model/archs.h"
#include "src/model/gguf/writer.h"
#include "src/run/engine.h"
#include "src/run/streamed.h"
#include "tests/support/devices.h"
#include "tests/support/op_by_op.h"
#include "tests/support/support.h"
#include "tests/support/tolerance.h"

namespace fewbit::test {
namespace {

constexpr const char* kModels[] = {"granite",  // the first nine come from scripts/interop/goldens
                                   "granite4",
                                   "cohere",
                                   "olmo2",
                                   "ernie4_5",
                                   "llava",
                                   "gemma3-vision",
                                   "qwen3-vl-moe",
                                   "glm4v",
                                   "llama",
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
                                   "kimi-linear",
                                   "deepseek-v4",
                                   "granitemoe",
                                   "cohere2",
                                   "ministral3",
                                   "gemma4-e2b",
                                   "llama4-text",
                                   "lfm2",
                                   "nemotron-h"};

// What a .gguf file cannot say of a golden, though it can of the family; "" where it says all.
std::string no_gguf(const std::string& model) {
  if (model == "qwen2-moe") return "layers with and without experts";
  if (model == "qwen2-bias") return "4 heads of 64 beside a hidden size of 128";
  if (model == "exaone4") return "windows in a model of 4 layers";
  if (model.starts_with("gpt-oss")) return "a swiglu_limit of 2";
  if (model == "llama4-text") return "attention within chunks of 16 positions";
  if (model == "nemotron-h") return "a layer of an MLP beside layers of experts";
  return "";
}

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

// How far bf16 may be from the golden where a model enlarges small differences: little more than the float32 pass with
// every op's output rounded to bf16, which is what a bf16 pass is if no op loses more than its rounding.
class Bf16Limits {
 public:
  Bf16Limits(Exec& ex, const Checkpoint& c, std::span<const int32_t> ids, int64_t seqs, const OpByOp& exact)
      : ex_(ex),
        c_(c),
        seqs_(seqs),
        exact_(exact.choices),
        ends_(load_ends(ex, c, {.dtype = DType::f32})),
        pass_(op_by_op(ex, c, ids, seqs, DType::f32, true, &exact)) {}

  double of(const std::string& name, ConstTensorView expected, int64_t layer) const {
    Tensor x = ex_.to_device(pass_.states[static_cast<size_t>(layer)]);
    if (name == "logits")
      x = logits_of(ex_, c_.spec, ends_, x);
    else if (layer == c_.spec.layers)
      x = final_normed(ex_, c_.spec, ends_, x);
    const std::vector<bool> judged = before_the_first(same_choices(exact_, pass_.choices, layer), seqs_);
    const double rounding = relative_error(rows_where(ex_.to_host(x), judged), rows_where(expected, judged));
    return std::max(tol::kLogitsBf16, tol::kOverRounding * rounding) *
           (ex_.on_cuda() || cpu::has_tiles() ? tol::kRoundedWeights : 1);
  }

 private:
  Exec& ex_;
  const Checkpoint& c_;
  int64_t seqs_;
  const Choices& exact_;
  Ends ends_;
  OpByOp pass_;
};

// In bf16 a near tie of two experts falls either way: tokens that other experts than in float32 took are left out, with
// all behind them. A near tie of two keys likewise, and every token that has more than top_k keys has one: there
// attention looks at the keys that float32 chose, and the choice is judged by itself.
TEST_P(GoldenModel, HiddenStatesLogitsAndLoss) {
  FEWBIT_GOLDEN_SETUP();
  const OpByOp exact = op_by_op(ex, c, values(ids), seqs, DType::f32, false, nullptr);
  const Bf16Limits limits(ex, c, values(ids), seqs, exact);
  for (const DType dtype : {DType::f32, DType::bf16}) {
    const bool rounds = dtype == DType::bf16, imposes = rounds && !exact.keys.empty();
    OpByOp bf16;
    if (rounds) bf16 = op_by_op(ex, c, values(ids), seqs, dtype, false, &exact);
    EXPECT_LE(bf16.other_keys, tol::kOtherKeys);
    const Choices& chosen = rounds ? bf16.choices : exact.choices;
    Runner runner(ex, c, exact_inputs(dtype));
    double last_limit = tol::kNll;
    const auto compare = [&](const std::string& name, ConstTensorView x, int64_t layer) {
      const Tensor found = ex.to_host(x);
      const Tensor golden_rows = g.get(name);
      const ConstTensorView expected = golden_rows.view().reshaped(found.shape());
      const std::vector<bool> same = same_choices(exact.choices, chosen, layer);
      const auto elsewhere = static_cast<double>(std::count(same.begin(), same.end(), false));
      EXPECT_LE(elsewhere / static_cast<double>(same.size()), tol::kReroutedTokens) << name << " " << name_of(dtype);
      const std::vector<bool> judged = before_the_first(same, seqs);
      EXPECT_GE(std::count(judged.begin(), judged.end(), true), seqs) << name;
      last_limit = rounds ? limits.of(name, expected, layer) : tol::kLogitsF32;
      EXPECT_LE(relative_error(rows_where(found, judged), rows_where(expected, judged)), last_limit)
          << name << " " << name_of(dtype);
    };
    const int64_t layers = c.spec.layers;
    const auto state = [&](int64_t i, ConstTensorView x) {
      if (i < layers) compare("hidden_" + std::to_string(i), x, i);  // the golden's last is behind the final norm
    };
    Tensor x;
    if (imposes) {
      for (size_t i = 0; i < bf16.states.size(); ++i) state(static_cast<int64_t>(i), x = ex.to_device(bf16.states[i]));
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
    EXPECT_LE(std::fabs(sum / static_cast<double>(losses.size()) / expected - 1), rounds ? last_limit : tol::kNll)
        << name_of(dtype);
  }
}

// Names, order of rows, stacked experts, shifted norms and all of the metadata: the same model, and its copy
// back from the file's own config.
TEST_P(GoldenModel, ComesBackFromGguf) {
  FEWBIT_GOLDEN_SETUP();
  const TempDir dir;
  const GgufFamily& family = family_of(c.spec).gguf;
  if (const std::string why = family.arch.empty() ? std::string(family.why_not) : no_gguf(the_case()); !why.empty()) {
    const std::string refused = message_of([&] { write_gguf(c, dir / "m.gguf", {}, {}); }, ErrorKind::unsupported);
    EXPECT_NE(refused.find(why), std::string::npos) << refused;
    return;
  }
  const auto logits_of = [&](const Checkpoint& model) {
    Runner runner(ex, model, exact_inputs(DType::f32));
    return ex.to_host(runner.logits(runner.hidden(values(ids), seqs)));
  };
  GgufContents numbers;  // of what the source has in codes
  for (const NamedLinear& l : linears_of(c.spec))
    if (c.packed(l.name)) numbers[l.name + ".weight"] = {&gguf::type_f32, [&c, l] { return c.values(l); }};
  write_gguf(c, dir / "m.gguf", numbers, {});
  const Checkpoint read = Checkpoint::open(dir / "m.gguf");
  EXPECT_EQ(read.format, "gguf");
  std::string own(family.read_as.empty() ? family_of(c.spec).name() : family.read_as);
  if (the_case() == std::string("ministral3")) own = "Ministral3ForCausalLM";  // which a key of the file tells
  EXPECT_EQ(read.spec.arch, own == "MistralForCausalLM" && family.read_as.empty() ? "LlamaForCausalLM" : own);
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

// Logits [seqs, len - first, vocab] of an engine that takes `first` tokens of every sequence as a prompt in chunks and
// the others one by one, on the host.
Tensor stepped(Exec& ex, const Checkpoint& c, const Tensor& ids, int64_t first, int64_t chunk, KvType cache) {
  const int64_t seqs = ids.shape()[0], len = ids.shape()[1], vocab = c.spec.vocab;
  LoadOptions load = exact_inputs(DType::f32);
  load.kv_cache = cache;
  Engine engine(ex, c, {.load = load, .batch = seqs, .capacity = len, .prefill_chunk = seqs * chunk});
  Tensor out = Tensor::host(DType::f32, {seqs, len - first, vocab});
  const auto keep = [&](ConstTensorView logits, int64_t at) {
    const Tensor host = ex.to_host(logits);
    for (int64_t s = 0; s < seqs; ++s)
      std::copy_n(host.as<float>() + s * vocab, vocab, out.as<float>() + (s * (len - first) + at) * vocab);
  };
  std::vector<int32_t> prompt;
  for (int64_t s = 0; s < seqs; ++s)
    prompt.insert(prompt.end(), ids.as<int32_t>() + s * len, ids.as<int32_t>() + s * len + first);
  keep(engine.prefill(prompt), 0);
  for (int64_t t = first; t + 1 <= len - 1; ++t) {
    const Tensor next = Tensor::host(DType::i32, {seqs});
    for (int64_t s = 0; s < seqs; ++s) next.as<int32_t>()[s] = ids.as<int32_t>()[s * len + t];
    keep(engine.decode(ex.to_device(next)), t + 1 - first);
  }
  return out;
}

// The rows of logits [seqs * len, vocab] behind the tokens first - 1 … len - 2 of every sequence.
Tensor rows_behind(ConstTensorView all, int64_t seqs, int64_t first) {
  const int64_t len = all.numel() / all.shape[all.shape.rank() - 1] / seqs;
  std::vector<bool> take;
  for (int64_t t = 0; t < seqs * len; ++t) take.push_back(t % len >= first - 1 && t % len < len - 1);
  return rows_where(all.reshaped({seqs * len, all.numel() / (seqs * len)}), take);
}

TEST_P(GoldenModel, APromptInChunksAndSingleSteps) {
  FEWBIT_GOLDEN_SETUP();
  const Tensor expected = rows_behind(g.get("logits"), seqs, 20);
  for (const int64_t chunk : {int64_t{20}, int64_t{7}}) {
    const Tensor found = stepped(ex, c, ids, 20, chunk, KvType::plain);
    EXPECT_LE(relative_error(found.view().reshaped(expected.shape()), expected), tol::kLogitsF32) << chunk;
  }
  EXPECT_EQ(len, 48);
}

// Layers that read the keys of others take their codes too, turned as they are.
FEWBIT_DEVICE_TEST(SharedKeys, ThroughAQuantizedCache) {
  const std::string folder = "goldens/models/gemma4-e2b";
  FEWBIT_NEEDS_REFERENCE(folder + "/golden.safetensors");
  const Checkpoint c = Checkpoint::open(reference(folder));
  const Tensor ids = Golden(folder + "/golden.safetensors").get("input_ids");
  for (const KvType cache : {KvType::fp8, KvType::fp8_plain, KvType::int8, KvType::int4}) {
    Runner runner(ex, c, {.dtype = DType::f32, .kv_cache = cache});
    const Tensor whole = rows_behind(ex.to_host(runner.logits(runner.hidden(values(ids), 2))), 2, 20);
    const Tensor found = stepped(ex, c, ids, 20, 7, cache);
    EXPECT_LE(relative_error(found.view().reshaped(whole.shape()), whole),
              cache == KvType::int4 ? tol::kLogitsInt4Cache : tol::kLogitsQuantizedCache)
        << name_of(cache);
  }
}

// Latents in E4M3: a prompt in chunks and steps sees what a whole pass sees, near what latents as they are give.
FEWBIT_DEVICE_TEST(Latents, ThroughAQuantizedCache) {
  for (const char* model : {"deepseek-v2-mla", "deepseek-v32-topk12", "kimi-linear"}) {
    const std::string folder = std::string("goldens/models/") + model;
    FEWBIT_NEEDS_REFERENCE(folder + "/golden.safetensors");
    const Checkpoint c = Checkpoint::open(reference(folder));
    const Tensor ids = Golden(folder + "/golden.safetensors").get("input_ids");
    const auto whole = [&](KvType cache) {
      Runner runner(ex, c, {.dtype = DType::f32, .kv_cache = cache});
      return rows_behind(ex.to_host(runner.logits(runner.hidden(values(ids), 2))), 2, 20);
    };
    const Tensor plain = whole(KvType::plain), rounded = whole(KvType::fp8);
    for (const int64_t chunk : {int64_t{20}, int64_t{7}}) {
      const Tensor found = stepped(ex, c, ids, 20, chunk, KvType::fp8);
      EXPECT_LE(relative_error(found.view().reshaped(rounded.shape()), rounded), tol::kLogitsQuantizedCache)
          << model << " by " << chunk;
    }
    EXPECT_GT(relative_error(rounded, plain), tol::kLogitsF32) << model;
    if (!key_choice_of(c.spec.block(0))) {  // rounded states choose other keys, which moves logits much further
      EXPECT_LT(relative_error(rounded, plain), tol::kLogitsFp8Cache) << model;
    }
    EXPECT_THROW(check_cache_type(c.spec, KvType::int8), Error);
  }
}

// A sequence at a time through every block: what blocks leave for later ones waits beside the states.
FEWBIT_DEVICE_TEST(SharedKeys, ThroughAStreamedPass) {
  const std::string folder = "goldens/models/gemma4-e2b";
  FEWBIT_NEEDS_REFERENCE(folder + "/golden.safetensors");
  const Checkpoint c = Checkpoint::open(reference(folder));
  const Golden g(folder + "/golden.safetensors");
  const Tensor ids = g.get("input_ids"), expected = g.get("logits");
  int64_t seen = 0;
  run_streamed(ex, c, {.dtype = DType::f32}, {.ids = values(ids), .seqs = 2, .batch_seqs = 1},
               [&](int64_t begin, int64_t end, ConstTensorView x, const Ends& ends) {
                 const Tensor found = ex.to_host(logits_of(ex, c.spec, ends, x));
                 const ConstTensorView rows = expected.view().reshaped({2 * 48, c.spec.vocab});
                 EXPECT_LE(relative_error(found, rows.row_range(48 * begin, 48 * end)), tol::kLogitsF32) << begin;
                 seen += end - begin;
               });
  EXPECT_EQ(seen, 2);
}

// No golden has attention and state spaces beside experts and an MLP: a made one takes a prompt in chunks and single
// steps as it takes a whole sequence.
FEWBIT_DEVICE_TEST(GraniteHybrid, StepsAreTheWholePass) {
  const TempDir dir;
  const std::string config = R"({"architectures": ["GraniteMoeHybridForCausalLM"], "hidden_size": 64,
    "intermediate_size": 32, "shared_intermediate_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": 96, "layer_types": ["mamba", "attention", "mamba"], "mamba_n_heads": 8,
    "mamba_d_head": 16, "mamba_d_state": 24, "mamba_n_groups": 2, "num_local_experts": 4, "num_experts_per_tok": 2,
    "residual_multiplier": 0.22, "embedding_multiplier": 12, "logits_scaling": 6, "attention_multiplier": 0.0625,
    "rms_norm_eps": 1e-5, "hidden_act": "silu", "tie_word_embeddings": true})";
  const ModelSpec spec = build_spec(ConfigView::parse(config, "config.json"));
  const auto writer = container_safetensors.create(dir / "m", {});
  uint64_t seed = 0;
  for (const NamedDense& t : dense_tensors_of(spec)) writer->add(t.name, random_normal(DType::bf16, t.shape, ++seed));
  for (const NamedLinear& l : linears_of(spec))
    writer->add(l.name + ".weight", random_normal(DType::bf16, {l.out, l.in}, ++seed, 0.1f));
  writer->finish();
  std::ofstream(dir / "m/config.json") << config;
  const Checkpoint c = Checkpoint::open(dir / "m");
  Tensor ids = Tensor::host(DType::i32, {2, 40});
  for (int32_t i = 0; i < 80; ++i) ids.as<int32_t>()[i] = i * 37 % 96;
  Runner runner(ex, c, {.dtype = DType::f32});
  const Tensor whole = rows_behind(ex.to_host(runner.logits(runner.hidden(values(ids), 2))), 2, 20);
  const Tensor found = stepped(ex, c, ids, 20, 7, KvType::plain);
  EXPECT_LE(relative_error(found.view().reshaped(whole.shape()), whole), tol::kLogitsF32);
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
