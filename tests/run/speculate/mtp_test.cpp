// The layer that predicts one token further, against the outputs of the reference implementation (goldens/models), and
// drafts of it.
#include <algorithm>
#include <fstream>
#include <nlohmann/json.hpp>

#include "formats/container.h"
#include "src/core/half.h"
#include "src/model/synth/synth.h"
#include "src/run/speculate/mtp_head.h"
#include "src/run/speculate/speculative.h"
#include "tests/run/demo.h"
#include "tests/support/shapes.h"
#include "tests/support/support.h"
#include "tests/support/tiny_families.h"
#include "tests/support/tolerance.h"

namespace fewbit::test {
namespace {

constexpr const char* kModels[] = {"qwen3-next", "qwen3.5", "qwen3.5-moe", "glm4-moe", "glm-moe-dsa"};

class Mtp : public ::testing::TestWithParam<const char*> {
 protected:
  std::string folder() const { return std::string("goldens/models/") + GetParam(); }
};

TEST_P(Mtp, SaysWhatTheReferenceSays) {
  FEWBIT_NEEDS_REFERENCE(folder() + "/golden.safetensors");
  Exec ex = Exec::cpu();
  const Checkpoint c = Checkpoint::open(reference(folder()));
  if (!Golden(folder() + "/golden.safetensors").has("mtp.logits")) GTEST_SKIP() << "the golden has none of its layer";
  const Golden g(folder() + "/golden.safetensors");
  const Tensor ids = g.get("input_ids"), logits = g.get("mtp.logits"), hidden = g.get("mtp.hidden");
  const int64_t seqs = ids.shape()[0], len = ids.shape()[1];
  const LoadOptions load{.dtype = DType::f32};
  Engine engine(ex, c, {.load = load, .capacity = len});
  for (int64_t s = 0; s < seqs; ++s) {
    std::vector<int32_t> text;
    for (int64_t i = 0; i < len; ++i)
      text.push_back(ids.dtype() == DType::i64 ? static_cast<int32_t>(ids.as<int64_t>()[s * len + i])
                                               : ids.as<int32_t>()[s * len + i]);
    MtpHead head(ex, open_mtp(c), load, len);
    OneSequence sequence(ex, engine);
    engine.set_hooks({.seen = [&](int64_t first, ConstTensorView states) { head.see(first, states); }});
    sequence.feed(text, 1);
    Tensor states;
    const Tensor found = head.logits_of(text, states);
    const auto row = [&](ConstTensorView t) {
      return t.reshaped({seqs * (len - 1), t.shape[2]}).row_range(s * (len - 1), (s + 1) * (len - 1));
    };
    EXPECT_LE(relative_error(states, row(hidden)), tol::kLogitsF32) << GetParam();
    EXPECT_LE(relative_error(found, row(logits)), tol::kLogitsF32) << GetParam();
  }
}

TEST_P(Mtp, LeavesGreedyTokens) {
  FEWBIT_NEEDS_REFERENCE(folder() + "/golden.safetensors");
  Exec ex = Exec::cpu();
  const Checkpoint c = Checkpoint::open(reference(folder()));
  constexpr int64_t kNew = 24;
  Engine engine(ex, c, {.capacity = 11 + kNew});
  for (const uint64_t seed : {1, 2}) {
    std::vector<int32_t> prompt = random_ids(11, seed);
    for (int32_t& id : prompt) id %= static_cast<int32_t>(c.spec.vocab);
    const auto run = [&](const Drafter& drafter, int64_t k, float temperature) {
      return generate_speculating(ex, engine, drafter, prompt, kNew, {.temperature = temperature, .seed = seed},
                                  {.kind = DraftKind::mtp, .k = k, .sparing = false});
    };
    const std::vector<int32_t> plain = run({}, 0, 0).ids;
    for (const int64_t k : {1, 3}) {
      MtpHead head(ex, open_mtp(c), {}, 11 + kNew);
      const Speculated drafted = run(head.drafter(), k, 0);
      EXPECT_EQ(drafted.ids, plain) << GetParam() << ", " << k;
      EXPECT_GT(drafted.report.drafts.drafted, 0);
    }
    MtpHead head(ex, open_mtp(c), {}, 11 + kNew);
    EXPECT_GT(run(head.drafter(), 2, .9f).report.drafts.drafted, 0);
  }
}

INSTANTIATE_TEST_SUITE_P(All, Mtp, ::testing::ValuesIn(kModels), [](const auto& each) {
  std::string name = each.param;
  std::ranges::replace_if(
      name, [](char c) { return c == '-' || c == '.'; }, '_');
  return name;
});

// A random model of one layer more, cut to one that has it as its MTP layer.
void with_further_layer(const std::filesystem::path& from, const std::filesystem::path& to, int64_t layers) {
  const CheckpointIndex index = container_for(from).open(from);
  const auto writer = container_safetensors.create(to, {});
  for (const auto& [name, info] : index.tensors) writer->add(name, index.view(info));
  nlohmann::json config = nlohmann::json::parse(bytes_of_file(from / "config.json"));
  const int64_t hidden = config["hidden_size"];
  const std::string prefix = "model.layers." + std::to_string(layers) + ".";
  writer->add(prefix + "eh_proj.weight", random_normal(DType::bf16, {hidden, 2 * hidden}, 7, .02f));
  Tensor ones = Tensor::host(DType::bf16, {hidden});
  std::fill_n(ones.as<bf16>(), hidden, bf16(1.f));
  for (const char* norm : {"enorm", "hnorm", "shared_head.norm"}) writer->add(prefix + norm + ".weight", ones);
  writer->finish();
  config["num_hidden_layers"] = layers;
  std::ofstream(to / "config.json") << config.dump();
}

// Where the layer is packed its linears run as they are stored, and it drafts.
TEST(MtpLayers, MayBePacked) {
  const TempDir dir;
  Exec ex = Exec::cpu();
  for (const char* format : {"bf16", "fp8"}) {
    SynthOptions o;
    nlohmann::json config = tiny_config_of("Glm4MoeForCausalLM");
    const int64_t layers = config["num_hidden_layers"];
    config["num_hidden_layers"] = layers + 1;
    o.config = config.dump();
    o.format = format;
    synthesize(dir / format, o, {});
    const std::filesystem::path to = dir / (std::string(format) + "-mtp");
    with_further_layer(dir / format, to, layers);
    const Checkpoint c = Checkpoint::open(to);
    const MtpLayer layer = open_mtp(c);
    EXPECT_EQ(layer.block.packed("model.layers.0.self_attn.q_proj"), format == std::string("fp8"));
    Engine engine(ex, c, {.capacity = 40});
    const std::vector<int32_t> prompt = {3, 1, 4, 1, 5, 9};
    const auto run = [&](const Drafter& drafter, int64_t k) {
      return generate_speculating(ex, engine, drafter, prompt, 30, {},
                                  {.kind = DraftKind::mtp, .k = k, .sparing = false});
    };
    MtpHead head(ex, layer, {}, 40);
    const Speculated drafted = run(head.drafter(), 2);
    EXPECT_EQ(drafted.ids, run({}, 0).ids) << format;
    EXPECT_GT(drafted.report.drafts.drafted, 0);
  }
}

TEST(MtpLayers, AreRefusedWhereThereAreNone) {
  const Checkpoint c = Checkpoint::open(demo());
  EXPECT_NE(message_of([&] { open_mtp(c); }, ErrorKind::unsupported).find("has no layer that predicts"),
            std::string::npos);
}

}  // namespace
}  // namespace fewbit::test
