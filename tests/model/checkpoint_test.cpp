// Opening checkpoints: every complaint is made, and made at once.
#include "src/model/checkpoint.h"

#include <fstream>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>

#include "src/core/strings.h"
#include "src/model/synth/synth.h"
#include "tests/support/support.h"

namespace fewbit::test {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using Tensors = std::map<std::string, Tensor>;

// Rewrites the tensors of a checkpoint after `change`.
void rewrite(const fs::path& dir, const std::function<void(Tensors&)>& change) {
  Tensors tensors;
  {
    const CheckpointIndex index = container_safetensors.open(dir);
    for (const auto& [name, t] : index.tensors) tensors[name] = clone_host(index.view(t));
  }
  change(tensors);
  const auto writer = container_safetensors.create(dir, {});
  for (const auto& [name, t] : tensors) writer->add(name, t);
  writer->finish();
}

void rewrite_config(const fs::path& dir, const std::function<void(json&)>& change) {
  json c = json::parse(std::ifstream(dir / "config.json"));
  change(c);
  std::ofstream(dir / "config.json") << c.dump();
}

std::string complaints(const fs::path& dir, ErrorKind kind = ErrorKind::checkpoint) {
  return message_of([&] { Checkpoint::open(dir); }, kind);
}

constexpr const char* kQ = "model.layers.0.self_attn.q_proj";
constexpr const char* kUp = "model.layers.1.mlp.up_proj";

TEST(Checkpoint, AllComplaintsOfADenseOneComeAtOnce) {
  TempDir dir;
  synthesize(dir.path(), {.preset = "tiny"}, {});
  rewrite(dir.path(), [](Tensors& t) {
    t.erase(std::string(kQ) + ".weight");
    t[std::string(kUp) + ".weight"] = Tensor::host_zeros(DType::bf16, {3, 4});
    t["model.norm.weight"] = Tensor::host_zeros(DType::i32, {128});
  });
  const std::string what = complaints(dir.path());
  EXPECT_EQ(split(what, '\n').size(), 3u) << what;
  for (const char* word : {kQ, "missing", kUp, "[3, 4]", "model.norm.weight", "i32"})
    EXPECT_NE(what.find(word), std::string::npos) << word << "\n" << what;
}

TEST(Checkpoint, PackedTensorsAreCheckedByName) {
  TempDir dir;
  synthesize(dir.path(), {.preset = "tiny", .format = "marlin"}, {});
  rewrite(dir.path(), [](Tensors& t) {
    t.erase(std::string(kQ) + ".s");
    t[std::string(kUp) + ".B"] = Tensor::host_zeros(DType::i32, {3, 4});
  });
  const std::string what = complaints(dir.path());
  EXPECT_EQ(split(what, '\n').size(), 2u) << what;
  EXPECT_NE(what.find(std::string(kQ) + ".s': expected f16 [1, 128] (marlin int4 g128 sym), found nothing"),
            std::string::npos)
      << what;
  EXPECT_NE(what.find(std::string(kUp) + ".B': expected i32 [8, 512]"), std::string::npos) << what;
}

TEST(Checkpoint, ADenseLinearInAPackedCheckpointIsDense) {
  TempDir dir;
  synthesize(dir.path(), {.preset = "tiny", .format = "marlin"}, {});
  rewrite(dir.path(), [](Tensors& t) {
    t.erase(std::string(kQ) + ".B");
    t.erase(std::string(kQ) + ".s");
    t[std::string(kQ) + ".weight"] = Tensor::host_zeros(DType::bf16, {128, 128});
  });
  const Checkpoint c = Checkpoint::open(dir.path());
  EXPECT_FALSE(c.packed(kQ));
  EXPECT_TRUE(c.packed(kUp));
}

TEST(Checkpoint, AMixedMapIsReadBack) {
  TempDir dir;
  synthesize(dir.path(), {.preset = "tiny", .format = "marlin"}, {});
  const QuantSpec spec{.bits = 3, .group = 32, .symmetric = false};
  QuantizedLinear q;
  q.spec = spec;
  q.codes = Tensor::host_zeros(DType::u8, {128, 128});
  q.codes.as<uint8_t>()[5] = 7;
  q.scales = Tensor::host(DType::f32, {128, 4});
  std::fill_n(q.scales.as<float>(), 512, 0.5f);
  q.zeros = Tensor::host_zeros(DType::u8, {128, 4});
  rewrite(dir.path(), [&](Tensors& t) {
    t.erase(std::string(kQ) + ".B");
    t.erase(std::string(kQ) + ".s");
    for (NamedTensor& n : packing_gptq_v2.pack(kQ, q).tensors) t[n.name] = std::move(n.tensor);
  });
  rewrite_config(dir.path(), [](json& c) {
    c["quantization_config"]["fewbit"]["linears"][kQ] = {
        {"packing", "gptq_v2"}, {"bits", 3}, {"group_size", 32}, {"sym", false}, {"act_order", false}};
  });
  const Checkpoint c = Checkpoint::open(dir.path());
  EXPECT_EQ(c.format, "marlin");
  const QuantizedLinear read = c.unpack(kQ, 128, 128);
  EXPECT_EQ(read.spec, spec);
  EXPECT_EQ(content_hash(read), content_hash(q));
}

// Two layouts whose codes have the name of a dense weight, one described per tensor, the other per channel.
TEST(Checkpoint, CompressedTensorsTakesShapesAndTypesFromTheTensors) {
  TempDir dir;
  synthesize(dir.path(), {.preset = "tiny"}, {});
  const auto linear = [](const QuantSpec& spec) {
    QuantizedLinear q;
    q.spec = spec;
    q.codes = Tensor::host_zeros(DType::u8, {128, 128});
    q.codes.as<uint8_t>()[5] = 0x38;
    q.scales = Tensor::host(DType::f32, {128 / spec.out_group, 1});
    std::fill_n(q.scales.as<float>(), q.scales.numel(), 0.5f);
    if (spec.activations == ActQuant::tensor) q.input_scale = 0.25f;
    return q;
  };
  const std::string k = "model.layers.0.self_attn.o_proj";
  std::map<std::string, QuantizedLinear> linears;
  linears[kQ] = linear({.grid = Grid::f8_e4m3,
                        .bits = 8,
                        .group = -1,
                        .scale_dtype = DType::bf16,
                        .out_group = 128,
                        .activations = ActQuant::tensor});
  linears[k] = linear({.bits = 8, .group = -1, .scale_dtype = DType::f32, .activations = ActQuant::token});
  QuantizationSummary summary;
  summary.linears[kQ] = {&packing_ct_float, linears[kQ].spec, false};
  summary.linears[k] = {&packing_ct_int, linears[k].spec, false};
  rewrite(dir.path(), [&](Tensors& t) {
    for (const auto& [name, f] : summary.linears)
      for (NamedTensor& n : f.packing->pack(name, linears[name]).tensors) t[n.name] = std::move(n.tensor);
  });
  rewrite_config(dir.path(), [&](json& c) {
    c["quantization_config"] = json::parse(format_compressed_tensors.write_config(summary));
  });
  {
    const Checkpoint c = Checkpoint::open(dir.path());
    EXPECT_EQ(c.format, "compressed-tensors");
    EXPECT_EQ(c.quantization.linears.size(), 2u);
    for (const auto& [name, q] : linears) {
      const QuantizedLinear read = c.unpack(name, 128, 128);
      EXPECT_EQ(read.spec, q.spec) << name;
      EXPECT_EQ(content_hash(read), content_hash(q)) << name;
    }
  }
  rewrite(dir.path(), [&](Tensors& t) { t.erase(std::string(kQ) + ".input_scale"); });
  EXPECT_NE(complaints(dir.path()).find("input_scale': expected f32 [1] (ct_float fp8 tensor acts=tensor)"),
            std::string::npos)
      << complaints(dir.path());
}

// In the model's own code a router is a Linear like the others: other readers must be told to leave it alone.
TEST(Checkpoint, CompressedTensorsIgnoresRouters) {
  TempDir dir;
  synthesize(dir.path(), {.preset = "tiny-moe", .format = "compressed-tensors"}, {});
  const Checkpoint c = Checkpoint::open(dir.path());
  EXPECT_EQ(c.quantization.linears.size(), linears_of(c.spec).size());
  const json config = json::parse(c.config.text());
  EXPECT_EQ(config["quantization_config"]["ignore"],
            json({"model.layers.0.mlp.gate", "model.layers.1.mlp.gate", "lm_head"}));
}

TEST(Checkpoint, ThePlaceOfAProblemIsNamed) {
  TempDir dir;
  EXPECT_NE(complaints(dir / "none", ErrorKind::io).find("none"), std::string::npos);
  EXPECT_NE(complaints(dir.path(), ErrorKind::io).find("config.json"), std::string::npos);
  synthesize(dir.path(), {.preset = "tiny", .format = "gptq"}, {});
  EXPECT_NE(complaints(dir / "model.safetensors", ErrorKind::io).find("a file"), std::string::npos);
  rewrite_config(dir.path(), [](json& c) { c["quantization_config"]["quant_method"] = "exl9"; });
  EXPECT_NE(complaints(dir.path(), ErrorKind::unsupported).find("exl9"), std::string::npos);
  rewrite_config(dir.path(), [](json& c) { c["architectures"] = {"NoSuchModel"}; });
  EXPECT_NE(complaints(dir.path(), ErrorKind::unsupported).find("NoSuchModel"), std::string::npos);
}

TEST(Checkpoint, QuantizeConfigBesideItIsRead) {
  TempDir dir;
  synthesize(dir.path(), {.preset = "tiny", .format = "gptq"}, {});
  rewrite_config(dir.path(), [&](json& c) {
    std::ofstream(dir / "quantize_config.json") << c["quantization_config"].dump();
    c.erase("quantization_config");
  });
  EXPECT_EQ(Checkpoint::open(dir.path()).format, "gptq");
  fs::remove(dir / "quantize_config.json");
  EXPECT_NE(complaints(dir.path()).find(kQ), std::string::npos);
}

}  // namespace
}  // namespace fewbit::test
