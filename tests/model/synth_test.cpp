// Synthetic checkpoints open, say the right things in their config, and depend on the seed alone.
#include "src/model/synth/synth.h"

#include <algorithm>
#include <cmath>
#include <fstream>
#include <functional>
#include <iterator>
#include <set>

#include "src/core/half.h"
#include "src/model/archs.h"
#include "src/model/checkpoint.h"
#include "src/model/checkpoint_parts.h"
#include "tests/support/support.h"
#include "tests/support/tiny_families.h"

namespace fewbit::test {
namespace {

namespace fs = std::filesystem;

struct Moments {
  double mean = 0, std = 0;
};
Moments moments(ConstTensorView v) {
  const Tensor f = to_f32(v);
  Moments m;
  for (int64_t i = 0; i < f.numel(); ++i) m.mean += f.as<float>()[i] / static_cast<double>(f.numel());
  for (int64_t i = 0; i < f.numel(); ++i)
    m.std += std::pow(f.as<float>()[i] - m.mean, 2) / static_cast<double>(f.numel());
  m.std = std::sqrt(m.std);
  return m;
}

TEST(Synth, DenseTinyOpensAndHasTheRightSpread) {
  TempDir dir;
  int64_t last = 0, total = 0;
  const int64_t bytes = synthesize(dir.path(), {.preset = "tiny"}, [&](int64_t done, int64_t all) {
    EXPECT_GT(done, last);
    last = done;
    total = all;
  });
  EXPECT_EQ(last, bytes);
  EXPECT_EQ(total, bytes);
  const Checkpoint c = Checkpoint::open(dir.path());
  EXPECT_EQ(c.format, "dense");
  EXPECT_EQ(c.store.total_bytes(), bytes);
  EXPECT_EQ(c.spec.layers, 2);
  EXPECT_EQ(c.spec.hidden, 128);
  EXPECT_EQ(c.spec.vocab, 512);
  EXPECT_EQ(c.spec.eos, std::vector<int64_t>{2});
  EXPECT_TRUE(fs::exists(dir / "generation_config.json"));
  const Moments w = moments(c.store.get("model.embed_tokens.weight"));
  EXPECT_LT(std::fabs(w.mean), 0.001);
  EXPECT_GT(w.std, 0.019);
  EXPECT_LT(w.std, 0.021);
  const Moments norm = moments(c.store.get("model.norm.weight"));
  EXPECT_LT(std::fabs(norm.mean - 1), 0.02);
  EXPECT_GT(norm.std, 0.01);
}

TEST(Synth, EveryPresetIsAModelThatIsKnown) {
  for (const SynthPreset& p : synth_presets()) {
    if (p.name.substr(0, 4) != "tiny") continue;  // the others take gigabytes
    TempDir dir;
    synthesize(dir.path(), {.preset = std::string(p.name)}, {});
    const Checkpoint c = Checkpoint::open(dir.path());
    EXPECT_GE(c.spec.layers, 2) << p.name;
    const double centre = c.spec.final_norm_kind == NormKind::rms ? 1 : 0;
    EXPECT_LT(std::fabs(moments(c.store.get(c.spec.final_norm)).mean - centre), 0.02) << p.name;
  }
}

// Of the language model alone, in units of 10^9: what the names of the public models say, or their cards.
TEST(Synth, PublishedPresetsHaveTheSizesOfTheirModels) {
  constexpr std::pair<const char*, double> kSizes[] = {
      {"gpt-oss-20b", 20.9},    {"gpt-oss-120b", 116.8}, {"glm-4.5-air", 106},
      {"deepseek-v3", 671},     {"kimi-k2", 1026},       {"gemma4-31b", 30.7},
      {"gemma4-26b-a4b", 25.2}, {"qwen3.8-27b", 27},     {"qwen3.6-35b-a3b", 34.7}};
  for (const auto& [name, billions] : kSizes) {
    const ModelSpec spec = build_spec(ConfigView::parse(synth_preset_config({.preset = name}), name));
    EXPECT_LT(std::fabs(static_cast<double>(parameter_count(spec)) / (billions * 1e9) - 1), 0.03)
        << name << ": " << parameter_count(spec);
  }
}

// What loaders of other people must be told, because it is a linear to them and no codes stand for it.
TEST(Synth, AHeadInsideOfAWrapperIsDense) {
  TempDir dir;
  synthesize(dir.path(), {.config = tiny_config_of("Llama4ForConditionalGeneration").dump()}, {});
  const std::vector<std::string> dense = always_dense(Checkpoint::open(dir.path()));
  EXPECT_NE(std::find(dense.begin(), dense.end(), "language_model.lm_head"), dense.end());
}

TEST(Synth, LayersAndExpertsCutAPreset) {
  const ModelSpec spec = build_spec(
      ConfigView::parse(synth_preset_config({.preset = "deepseek-v3", .layers = 4, .experts = 6}), "deepseek-v3"));
  EXPECT_EQ(spec.layers, 4);
  const auto& last = spec.block(3);
  const auto moe =
      std::find_if(last.begin(), last.end(), [](const BlockOp& op) { return std::holds_alternative<Moe>(op); });
  ASSERT_NE(moe, last.end());  // behind the three dense layers
  EXPECT_EQ(std::get<Moe>(*moe).experts, 6);
  EXPECT_EQ(std::get<Moe>(*moe).top_k, 6);
  EXPECT_EQ(build_spec(ConfigView::parse(synth_preset_config({.preset = "gemma4-31b", .layers = 7}), "")).layers, 7);
  const auto refused = [](const SynthOptions& o) {
    return message_of([&] { synth_preset_config(o); }, ErrorKind::usage);
  };
  EXPECT_NE(refused({.preset = "qwen3.8-27b", .experts = 2}).find("has none"), std::string::npos);
  EXPECT_NE(refused({.preset = "tiny-moe", .experts = 5}).find("has 4"), std::string::npos);
  EXPECT_NE(refused({.preset = "kimi-k9"}).find("kimi-k2"), std::string::npos);
}

TEST(Synth, PackedTinyOpensAndUnpacks) {
  for (const char* format : {"marlin", "gptq", "fp8", "int8"}) {
    TempDir dir;
    synthesize(dir.path(), {.preset = "tiny", .format = format, .layers = 3}, {});
    const Checkpoint c = Checkpoint::open(dir.path());
    const bool bytes = std::string(format) == "fp8" || std::string(format) == "int8";
    EXPECT_EQ(c.format, bytes ? "compressed-tensors" : format);
    EXPECT_EQ(c.spec.layers, 3);
    for (const NamedLinear& l : linears_of(c.spec)) {
      ASSERT_TRUE(c.packed(l.name));
      const QuantizedLinear q = c.unpack(l.name, l.out, l.in);
      EXPECT_EQ(check(q), "");
      const Moments w = moments(dequantize_reference(q));
      EXPECT_LT(std::fabs(w.mean), 0.001) << l.name;
      EXPECT_GT(w.std, 0.019) << l.name;
      EXPECT_LT(w.std, 0.025) << l.name;
    }
  }
}

TEST(Synth, MixtureOfExpertsOpensAndItsRouterStaysDense) {
  for (const char* format : {"bf16", "marlin"}) {
    TempDir dir;
    const int64_t bytes = synthesize(dir.path(), {.preset = "tiny-moe", .format = format}, {});
    const Checkpoint c = Checkpoint::open(dir.path());
    EXPECT_EQ(c.store.total_bytes(), bytes);
    EXPECT_EQ(c.spec.arch, "Qwen3MoeForCausalLM");
    EXPECT_EQ(linears_of(c.spec).size(), 2u * (4 + 3 * 4));
    EXPECT_EQ(c.store.get("model.layers.1.mlp.gate.weight").dtype, DType::bf16);
    EXPECT_EQ(c.packed("model.layers.1.mlp.experts.3.down_proj"), std::string(format) == "marlin");
  }
}

TEST(Synth, TheSeedAloneDecides) {
  TempDir a, b, c, d;
  synthesize(a.path(), {.preset = "tiny", .format = "marlin", .seed = 1}, {});
  synthesize(b.path(), {.preset = "tiny", .format = "marlin", .seed = 1}, {});
  synthesize(c.path(), {.preset = "tiny", .format = "marlin", .seed = 2}, {});
  for (const char* file : {"model.safetensors", "config.json", "generation_config.json"})
    EXPECT_EQ(bytes_of_file(a / file), bytes_of_file(b / file)) << file;
  EXPECT_NE(bytes_of_file(a / "model.safetensors"), bytes_of_file(c / "model.safetensors"));
  // A value is keyed by its tensor's name, so fewer layers and smaller shards change nothing.
  synthesize(d.path(), {.preset = "tiny", .format = "marlin", .layers = 1, .seed = 1, .shard_bytes = 60000}, {});
  EXPECT_TRUE(fs::exists(d / "model.safetensors.index.json"));
  const Checkpoint x = Checkpoint::open(a.path()), y = Checkpoint::open(d.path());
  for (const auto& [name, t] : y.store.index().tensors)
    EXPECT_EQ(first_difference(x.store.get(name), y.store.get(name)), "") << name;
}

TEST(Synth, TokensStandBesideTheModel) {
  TempDir a, b;
  synthesize(a.path(), {.preset = "tiny", .seed = 3, .tokens = 1000, .seq_len = 64}, {});
  synthesize(b.path(), {.preset = "tiny", .seed = 3, .tokens = 1000, .seq_len = 64}, {});
  EXPECT_EQ(bytes_of_file(a / "calibration.safetensors"), bytes_of_file(b / "calibration.safetensors"));
  const Checkpoint c = Checkpoint::open(a.path());  // the ids are no part of it
  EXPECT_EQ(c.store.index().tensors.count("input_ids"), 0u);
  const CheckpointIndex index = container_safetensors.open(a / "calibration.safetensors");
  const Tensor ids = clone_host(index.view(index.tensors.at("input_ids")));
  ASSERT_TRUE(ids.dtype() == DType::i32 && ids.shape() == Shape({15, 64}));  // 40 tokens fill no window
  std::set<int32_t> seen(ids.as<int32_t>(), ids.as<int32_t>() + ids.numel());
  EXPECT_GE(*seen.begin(), 0);
  EXPECT_LT(*seen.rbegin(), c.spec.vocab);
  EXPECT_GT(seen.size(), 400u) << "of 512";
}

TEST(Synth, WhatCannotBeMadeIsRefused) {
  TempDir dir;
  const auto make = [&](const SynthOptions& o) { return [&dir, o] { synthesize(dir.path(), o, {}); }; };
  EXPECT_NE(message_of(make({.preset = "llama9"}), ErrorKind::usage).find("llama3-8b"), std::string::npos);
  EXPECT_NE(message_of(make({.preset = "tiny", .format = "fp9"}), ErrorKind::usage).find("marlin"), std::string::npos);
  EXPECT_NE(message_of(make({.preset = "tiny", .layers = -1}), ErrorKind::usage), "");
  EXPECT_NE(message_of(make({.preset = "tiny", .tokens = 63, .seq_len = 64}), ErrorKind::usage).find("63 tokens"),
            std::string::npos);
  EXPECT_NE(message_of(make({.preset = "tiny", .tokens = 1 << 30, .seq_len = 1 << 29}), ErrorKind::usage), "");
  EXPECT_TRUE(fs::is_empty(dir.path()));
}

TEST(Synth, PresetsHaveUniqueNames) {
  const auto presets = synth_presets();
  EXPECT_GE(presets.size(), 8u);
  for (size_t i = 0; i < presets.size(); ++i)
    for (size_t j = 0; j < i; ++j) EXPECT_NE(presets[i].name, presets[j].name);
}

}  // namespace
}  // namespace fewbit::test
