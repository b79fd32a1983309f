// `convert to` as a user types it: codes move between formats and come back, dense conversions run, refusals
// leave nothing behind.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <set>

#include "src/model/checkpoint.h"
#include "tests/support/command_test.h"

namespace fewbit::test {
namespace {

namespace fs = std::filesystem;

const std::string kScore = " --device cpu --max-windows 2 --context 256";

class Convert : public CommandTest {
 protected:
  double perplexity(const std::string& model) {
    return json("evaluate perplexity " + model + kScore)["perplexity"].get<double>();
  }
  std::vector<std::string> entries() const {
    std::vector<std::string> names;
    for (const auto& e : fs::directory_iterator(dir.path())) names.push_back(e.path().filename().string());
    std::sort(names.begin(), names.end());
    return names;
  }
  // gptq, compressed-tensors, marlin, gptq: the last file must be the first.
  void go_round(const std::string& model, const std::string& recipe) {
    done("quantize '" + recipe + "' " + model + " first --format gptq --device cpu");
    done("convert to compressed-tensors first second");
    done("convert to marlin second third");
    done("convert to gptq third fourth");
    EXPECT_EQ(bytes_of_file(dir / "fourth/model.safetensors"), bytes_of_file(dir / "first/model.safetensors"))
        << recipe;
    EXPECT_EQ(Json::parse(bytes_of_file(dir / "fourth/config.json")),
              Json::parse(bytes_of_file(dir / "first/config.json")));
    EXPECT_EQ(bytes_of_file(dir / "fourth/quantize_config.json"), bytes_of_file(dir / "first/quantize_config.json"));
    for (const char* each : {"second", "third", "fourth"})
      done("evaluate verify " + std::string(each) + " --device cpu");
    for (const char* each : {"first", "second", "third", "fourth"}) fs::remove_all(dir / each);
  }
};

TEST_F(Convert, TheRoundTripReturnsTheFirstFile) {
  go_round(kDemo, "rtn int4 g128");
  go_round(kDemo, "rtn int4 g64 asym");
  go_round(kDemo, "rtn int8 g128");
}

TEST_F(Convert, TheRoundTripOfAGoldenReturnsTheFirstFile) {
  FEWBIT_NEEDS_REFERENCE("goldens/models/llama");
  fs::copy(reference("goldens/models/llama"), dir / "model");
  fs::remove(dir / "model/golden.safetensors");
  go_round("model", "rtn int4 g32");
}

TEST_F(Convert, CodesVisitEveryFormatThatHoldsThem) {
  done("quantize 'rtn int4 g32 asym' " + kDemo + " first --format awq --device cpu");
  std::string at = "first";
  for (const char* format : {"gguf", "marlin", "gptq", "compressed-tensors", "awq"}) {
    done("convert to " + std::string(format) + " " + at + " " + format);
    done("evaluate verify " + std::string(format) + " --device cpu");
    for (const char* file :
         {"tokenizer.json", "tokenizer_config.json", "generation_config.json", "README.md", "config.json"})
      EXPECT_TRUE(fs::exists(dir / format / file)) << format << " " << file;
    at = format;
  }
  const Checkpoint a = Checkpoint::open(dir / "first"), b = Checkpoint::open(dir / "awq");
  for (const NamedLinear& l : linears_of(a.spec))
    EXPECT_EQ(content_hash(a.unpack(l.name, l.out, l.in)), content_hash(b.unpack(l.name, l.out, l.in))) << l.name;
  EXPECT_EQ(b.store.index().files.size(), 1u);
  EXPECT_NE(bytes_of_file(dir / "awq/README.md").find("convert to awq MODEL OUT"), std::string::npos);
}

TEST_F(Convert, DenseConversionsRunAsThePackedModelDoes) {
  done("quantize 'rtn int4 g128' " + kDemo + " packed --device cpu");
  done("convert to bf16 packed dense");
  done("convert to f32 packed wide");
  const Json config = Json::parse(bytes_of_file(dir / "dense/config.json"));
  EXPECT_FALSE(config.contains("quantization_config"));
  EXPECT_FALSE(fs::exists(dir / "dense/quantize_config.json"));
  const Json packed = json("evaluate perplexity packed --reference" + kScore);
  EXPECT_EQ(perplexity("dense"), packed["reference"]["perplexity"].get<double>());
  EXPECT_EQ(perplexity("wide --dtype float32"), perplexity("packed --dtype float32"));
  const Checkpoint from = Checkpoint::open(dir / "packed"), to = Checkpoint::open(dir / "wide");
  EXPECT_EQ(to.format, "dense");
  for (const NamedLinear& l : linears_of(from.spec))
    EXPECT_EQ(first_difference(from.values(l), to.values(l)), "") << l.name;
}

TEST_F(Convert, Fp8MovesWhereScalesAgree) {
  done("quantize 'fp8 tensor acts=tensor' " + kDemo + " ct --samples 4 --seq-len 256 --device cpu");
  done("convert to fp8 ct fp8");
  done("convert to modelopt fp8 modelopt");
  EXPECT_TRUE(fs::exists(dir / "modelopt/hf_quant_config.json"));
  done("convert to compressed-tensors modelopt back");
  EXPECT_EQ(bytes_of_file(dir / "back/model.safetensors"), bytes_of_file(dir / "ct/model.safetensors"));
  done("quantize fp8 " + kDemo + " rows --device cpu");
  const ProcessResult r = run("convert to fp8 rows no");
  EXPECT_EQ(r.exit_code, 1);
  EXPECT_NE(r.err.find("one per linear or per block"), std::string::npos) << r.err;
}

TEST_F(Convert, ShardsAreNoLargerThanAsked) {
  done("quantize 'rtn int4 g128' " + kDemo + " packed --device cpu");
  done("convert to gptq packed out --shard-size 1MB");
  size_t shards = 0;
  for (const auto& e : fs::directory_iterator(dir / "out"))
    if (e.path().extension() == ".safetensors") {
      ++shards;
      // A tensor that is larger alone fills a shard of its own; the header is not counted.
      EXPECT_LT(e.file_size(), 4096u * 256 * 2 + 65536) << e.path();
    }
  EXPECT_GE(shards, 2u);
  EXPECT_TRUE(fs::exists(dir / "out/model.safetensors.index.json"));
  EXPECT_EQ(perplexity("out"), perplexity("packed"));
  EXPECT_EQ(run("convert to gptq packed no --shard-size big").exit_code, 2);
}

TEST_F(Convert, RefusalsSayWhyAndLeaveNothingBehind) {
  done("quantize 'gptq int4 g128 act=full' " + kDemo + " packed --format gptq --samples 4 --seq-len 256 --device cpu");
  done("quantize rtn " + kDemo + " blocks --format gguf:q4_k --device cpu");
  const std::vector<std::string> before = entries();
  const auto refused = [&](const std::string& what, const char* reason, int code = 1) {
    const ProcessResult r = run("convert to " + what);
    EXPECT_EQ(r.exit_code, code) << what << r.err;
    EXPECT_NE(r.err.find(reason), std::string::npos) << what << "\n" << r.err;
    EXPECT_EQ(entries(), before) << what;
  };
  refused("awq packed out", "act-order");
  refused("gguf packed out", "groups of 32 inputs, not 128");
  refused("gguf packed out.gguf", "27 others");
  refused("modelopt packed out", "FP8");
  refused("gptq " + kDemo + " out", "no linear is packed");
  refused("gptq blocks out", "blocks of q4_k are no codes of one grid");
  refused("gptqq packed out", "known:", 2);
  refused("gptq:q4_0 packed out", "only gguf takes a type", 2);
  refused("gptq packed blocks", "exists", 2);
  refused("gptq packed no/such/out", "expected a folder");
}

TEST_F(Convert, AGgufFileBecomesAFolderWithItsTokenizer) {
  done("quantize 'rtn int4 g32' " + kDemo + " packed --device cpu");
  done("convert to gguf packed m.gguf");
  done("convert to gptq m.gguf out");
  EXPECT_EQ(perplexity("out --dtype float32"), perplexity("m.gguf --dtype float32"));
  const std::string prompt = " --prompt 'The old harbour' --max-tokens 8 --device cpu";
  EXPECT_EQ(json("runner generate out" + prompt)["prompt_ids"], json("runner generate packed" + prompt)["prompt_ids"]);
  EXPECT_TRUE(fs::exists(dir / "out/tokenizer_config.json"));
  done("convert diff packed out");
}

// A head of another purpose: verbatim in every format, and listed as not quantized.
TEST_F(Convert, UnknownTensorsStayAsTheyAre) {
  fs::copy(kDemo, dir / "model");
  const Tensor extra = random_normal(DType::f32, {6, 5}, 3);
  {
    const CheckpointIndex demo = container_safetensors.open(kDemo);
    const auto writer = container_safetensors.create(dir / "model", {});
    for (const auto& [name, info] : demo.tensors) writer->add(name, demo.view(info));
    writer->add("mtp.head.weight", extra);
    writer->finish();
  }
  std::ofstream(dir / "model/chat_template.jinja") << "{{ messages }}";
  done("quantize 'rtn int4 g128' model a --format gptq --device cpu");
  done("convert to compressed-tensors a b");
  done("convert to bf16 b c");
  for (const char* each : {"b", "c"}) {
    const CheckpointIndex index = container_safetensors.open(dir / each);
    EXPECT_EQ(first_difference(index.view(index.tensors.at("mtp.head.weight")), extra), "") << each;
    EXPECT_TRUE(fs::exists(dir / each / "chat_template.jinja"));
  }
  const Json ignored = Json::parse(bytes_of_file(dir / "b/config.json"))["quantization_config"]["ignore"];
  EXPECT_NE(std::find(ignored.begin(), ignored.end(), "mtp.head"), ignored.end()) << ignored;
}

TEST_F(Convert, ScalesOfACacheTravelOrAreLeftOutAloud) {
  done("quantize 'rtn int4 g128 kv=fp8' " + kDemo + " a --samples 4 --seq-len 256 --device cpu");
  done("convert to compressed-tensors a b");
  EXPECT_EQ(bytes_of_file(dir / "b/model.safetensors"), bytes_of_file(dir / "a/model.safetensors"));
  EXPECT_EQ(bytes_of_file(dir / "b/config.json"), bytes_of_file(dir / "a/config.json"));
  const Json out = json("convert to marlin a c");
  EXPECT_NE(out["notes"].dump().find("scales of the FP8 cache are left out"), std::string::npos) << out;
  const CheckpointIndex index = container_safetensors.open(dir / "c");
  for (const auto& [name, info] : index.tensors) EXPECT_EQ(name.find("_scale"), std::string::npos) << name;
}

TEST_F(Convert, ExpertsMoveAsOtherLinearsDo) {
  FEWBIT_NEEDS_REFERENCE("goldens/models/qwen3-moe");
  fs::copy(reference("goldens/models/qwen3-moe"), dir / "model");
  fs::remove(dir / "model/golden.safetensors");
  go_round("model", "rtn int4 g32");
}

TEST_F(Convert, TheCardHasTheMeasuredPerplexity) {
  fs::copy(kDemo, dir / "model");
  Json report = json("quantize 'rtn int4 g128' model out --device cpu --measure");
  const Json measured = report["perplexity"];
  const Json again = json("evaluate perplexity out --device cpu");
  EXPECT_EQ(measured["perplexity"], again["perplexity"]);
  EXPECT_LT(measured["base"].get<double>(), measured["perplexity"].get<double>());
  EXPECT_EQ(Json::parse(bytes_of_file(dir / "out/quant_report.json"))["perplexity"], measured);
  char shown[64];
  std::snprintf(shown, sizeof shown, "| perplexity | %.4f ± ", measured["perplexity"].get<double>());
  EXPECT_NE(bytes_of_file(dir / "out/README.md").find(shown), std::string::npos)
      << bytes_of_file(dir / "out/README.md");
  done("convert to gptq out gptq");
  EXPECT_NE(bytes_of_file(dir / "gptq/README.md").find(shown), std::string::npos);
  for (const auto& e : fs::directory_iterator(dir / "out")) EXPECT_NE(e.path().filename().string()[0], '.');
}

class Diff : public Convert {
 protected:
  Json diff(const std::string& pair, int code) {
    const ProcessResult r = run("convert diff " + pair + " --json -");
    EXPECT_EQ(r.exit_code, code) << pair << "\n" << r.err;
    return json_of(r);
  }
};

// Flips the lowest bit of the first byte of a tensor in a file.
void flip_bit(const fs::path& file, const std::string& tensor) {
  std::string bytes = bytes_of_file(file);
  uint64_t header = 0;
  std::memcpy(&header, bytes.data(), 8);
  const Json index = Json::parse(bytes.substr(8, header));
  bytes[8 + header + index[tensor]["data_offsets"][0].get<uint64_t>()] ^= 1;
  std::ofstream(file, std::ios::binary) << bytes;
}

TEST_F(Diff, PlantedChangesAreFoundWorstFirst) {
  done("quantize 'rtn int4 g128' " + kDemo + " a --format gptq --device cpu");
  EXPECT_TRUE(diff("a a", 0)["same"].get<bool>());
  fs::copy(dir / "a", dir / "b");
  flip_bit(dir / "b/model.safetensors", "model.layers.1.mlp.down_proj.qweight");
  flip_bit(dir / "b/model.safetensors", "model.norm.weight");
  const Json found = diff("a b", 1);
  EXPECT_FALSE(found["same"].get<bool>());
  EXPECT_EQ(found["counts"]["different"], 2);
  std::set<std::string> names;
  for (int i : {0, 1}) names.insert(found["tensors"][i]["name"].get<std::string>());
  EXPECT_EQ(names, (std::set<std::string>{"model.layers.1.mlp.down_proj.weight", "model.norm.weight"}));
  EXPECT_GE(found["tensors"][0]["relative"].get<double>(), found["tensors"][1]["relative"].get<double>());
  for (const Json& t : found["tensors"]) {
    if (t["name"] == "model.layers.1.mlp.down_proj.weight") {
      EXPECT_EQ(t["codes"], 1);
      EXPECT_EQ(t["values"], 1);
      EXPECT_GT(t["max_abs"].get<double>(), 0);
    }
  }
  const ProcessResult table = run("convert diff a b");
  EXPECT_EQ(table.exit_code, 1);
  EXPECT_NE(table.out.find("model.layers.1.mlp.down_proj.weight"), std::string::npos) << table.out;
  EXPECT_NE(table.err.find("differ in 2 tensors"), std::string::npos) << table.err;
}

TEST_F(Diff, FormatsOfTheSameCodesAreTheSame) {
  done("quantize 'rtn int4 g32' " + kDemo + " a --format gptq --device cpu");
  done("convert to awq a b");
  done("convert to f32 a c");
  const Json packed = diff("a b", 0), dense = diff("a c", 0);
  EXPECT_EQ(packed["counts"]["different"], 0);
  EXPECT_GT(dense["counts"]["same values"].get<int>(), 28);
  const Json original = diff(kDemo + " a", 1);
  EXPECT_EQ(original["counts"]["different"], 28);
  EXPECT_LT(original["tensors"][0]["relative"].get<double>(), 0.5);
  // One file without its config: tensors by name, nothing is known to be packed.
  const Json raw = diff("a/model.safetensors b/model.safetensors", 1);
  EXPECT_GT(raw["counts"]["other shape"].get<int>() + raw["counts"]["only in A"].get<int>(), 0);
}

// A model of no family that is read here still says what it is, and how far the nearest one is from it.
TEST_F(Convert, ARefusedModelIsInspectedAllTheSame) {
  std::filesystem::copy(kDemo, dir / "k3");
  Json config = Json::parse(std::ifstream(dir / "k3/config.json"));
  config["architectures"] = {"KimiK3ForConditionalGeneration"};
  config["model_type"] = "kimi_k3";
  std::ofstream(dir / "k3/config.json") << config;
  const ProcessResult r = run("convert inspect k3 --json told.json");
  EXPECT_EQ(r.exit_code, 1);
  for (const char* words : {"KimiK3ForConditionalGeneration", "which needs", "nearest family", "supported: Llama"})
    EXPECT_NE(r.err.find(words), std::string::npos) << words << " in\n" << r.err;
  for (const char* words : {"model_type: \"kimi_k3\"", "model.layers.N.self_attn.q_proj.weight", "nearest family:"})
    EXPECT_NE(r.out.find(words), std::string::npos) << words << " in\n" << r.out;
  const Json told = Json::parse(std::ifstream(dir / "told.json"));
  EXPECT_EQ(told["architecture"], "KimiK3ForConditionalGeneration");
  EXPECT_EQ(told["nearest"], "LlamaForCausalLM");  // whose tensors it has
  EXPECT_TRUE(told["missing"].empty() && told["unknown"].empty()) << told["missing"] << told["unknown"];
  EXPECT_GT(told["tensors"].size(), 30u);
  EXPECT_EQ(run("quantize rtn k3 out --device cpu").exit_code, 1);
  EXPECT_FALSE(std::filesystem::exists(dir / "out"));
}

}  // namespace
}  // namespace fewbit::test
