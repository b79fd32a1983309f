// GGUF by the commands: quantize, read back, verify, convert; on the embedded demo model.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "tests/support/command_test.h"

namespace fewbit::test {
namespace {

namespace fs = std::filesystem;

const std::string kScore = " --device cpu --dtype float32 --max-windows 2 --context 256";

class GgufCommands : public CommandTest {
 protected:
  double perplexity(const std::string& model) {
    return json("evaluate perplexity " + model + kScore)["perplexity"].get<double>();
  }
};

TEST_F(GgufCommands, KQuantsAreWrittenReadAndVerified) {
  ASSERT_EQ(run("quantize rtn " + kDemo + " out --format gguf:q4_k --device cpu").exit_code, 0);
  EXPECT_TRUE(fs::exists(dir / "out/model.gguf"));
  EXPECT_FALSE(fs::exists(dir / "out/model.safetensors"));
  EXPECT_EQ(run("evaluate verify out --device cpu").exit_code, 0);
  const Json inspected = json("convert inspect out");
  EXPECT_EQ(inspected["format"], "gguf");
  EXPECT_EQ(inspected["quantized"]["q4_k (decoded)"], 28);
  const double base = perplexity(kDemo), plain_name = perplexity("out"), file = perplexity("out/model.gguf");
  EXPECT_EQ(plain_name, file);
  EXPECT_GT(file, base);
  EXPECT_LT(file, base * 1.15);
}

TEST_F(GgufCommands, GptqCodesBecomeSimpleBlocks) {
  ASSERT_EQ(run("quantize gptq " + kDemo + " out --format gguf:q4_0" + kFast).exit_code, 0);
  EXPECT_EQ(run("evaluate verify out --device cpu").exit_code, 0);
  EXPECT_EQ(json("convert inspect out")["quantized"]["gguf_q4_0 int4 g32 sym"], 28);
  ASSERT_EQ(run("quantize 'gptq asym' " + kDemo + " asym --format gguf" + kFast).exit_code, 0);
  EXPECT_EQ(json("convert inspect asym")["quantized"]["gguf_q4_1 int4 g32 asym"], 28);
}

// Error feedback in blocks whose scales are rounded too; 3 bits, and a rule for what matters more.
TEST_F(GgufCommands, GptqFillsBlocksWithScalesOfTheirOwn) {
  const std::string rule = " --device cpu --set '*.down_proj=format=gguf:iq4_xs'";
  // Of fewer tokens than a few times the inputs, error feedback learns the calibration text itself.
  ASSERT_EQ(run("quantize gptq " + kDemo + " out --format gguf:q3_k --samples 24 --seq-len 512" + rule).exit_code, 0);
  ASSERT_EQ(run("quantize rtn " + kDemo + " rtn --format gguf:q3_k" + rule).exit_code, 0);
  EXPECT_EQ(run("evaluate verify out --device cpu").exit_code, 0);
  const Json quantized = json("convert inspect out")["quantized"];
  EXPECT_EQ(quantized["q3_k (decoded)"].get<int>() + quantized["iq4_xs (decoded)"].get<int>(), 28);
  const double base = perplexity(kDemo), fed = perplexity("out"), rounded = perplexity("rtn");
  EXPECT_GT(fed, base);
  EXPECT_LT(fed, rounded);
}

// A type for each tensor, embedding included, by each way in.
TEST_F(GgufCommands, MixesAreWritten) {
  const std::string flags = " --format gguf:q4_k_m --device cpu --samples 8 --seq-len 256";
  ASSERT_EQ(run("quantize gptq " + kDemo + " fed" + flags).exit_code, 0);
  EXPECT_EQ(run("evaluate verify fed --device cpu").exit_code, 0);
  const Json quantized = json("convert inspect fed")["quantized"];
  EXPECT_EQ(quantized["q4_k (decoded)"], 24);
  EXPECT_EQ(quantized["q6_k (decoded)"], 5);  // with the embedding
  ASSERT_EQ(run("quantize rtn " + kDemo + " plain --format gguf:q4_k_m --device cpu").exit_code, 0);
  ASSERT_EQ(run("convert to gguf:Q4_K_M " + kDemo + " c.gguf").exit_code, 0);
  const auto bytes = fs::file_size(dir / "fed/model.gguf");
  EXPECT_EQ(fs::file_size(dir / "plain/model.gguf"), bytes);
  EXPECT_EQ(fs::file_size(dir / "c.gguf"), bytes);
  EXPECT_LT(bytes, 2'900'000u);  // with the embedding in q6_k
  ASSERT_EQ(
      run("quantize rtn " + kDemo + " kept --format gguf:q4_k_m --keep model.embed_tokens --device cpu").exit_code, 0);
  EXPECT_GT(fs::file_size(dir / "kept/model.gguf"), bytes + 1'000'000u);
}

// What a calibrated run saw weighs the inputs of one that sees nothing.
TEST_F(GgufCommands, AnImatrixGoesFromOneRunToAnother) {
  const std::string mix = " --format gguf:q3_k_m --device cpu";
  ASSERT_EQ(run("quantize gptq " + kDemo + " fed --write-imatrix seen.gguf --samples 8 --seq-len 256" + mix).exit_code,
            0);
  ASSERT_EQ(run("quantize rtn " + kDemo + " plain" + mix).exit_code, 0);
  ASSERT_EQ(run("quantize rtn " + kDemo + " weighed --imatrix seen.gguf" + mix).exit_code, 0);
  EXPECT_EQ(run("evaluate verify weighed --device cpu").exit_code, 0);
  EXPECT_LT(perplexity("weighed"), perplexity("plain"));
  const auto refusal = [&](const std::string& command) { return run("quantize " + command).err; };
  EXPECT_NE(refusal("gptq " + kDemo + " no --imatrix seen.gguf" + mix).find("it is for rtn"), std::string::npos);
  EXPECT_NE(refusal("rtn " + kDemo + " no --imatrix fed/model.gguf" + mix).find("no imatrix"), std::string::npos);
  EXPECT_NE(refusal("rtn " + kDemo + " no --write-imatrix x.gguf" + mix).find("does not look at the inputs"),
            std::string::npos);
  EXPECT_FALSE(fs::exists(dir / "no"));
}

// Fused linears, stacked experts and norms stored as 1 + w, through the whole of a quantization and back to a folder.
TEST_F(GgufCommands, OtherArchitecturesAreQuantizedAndVerified) {
  for (const std::string preset : {"tiny-gemma2", "tiny-gemma3", "tiny-phi3", "tiny-moe"}) {
    SCOPED_TRACE(preset);
    ASSERT_EQ(run("convert synth --preset " + preset + " " + preset).exit_code, 0);
    ASSERT_EQ(run("quantize rtn " + preset + " " + preset + "-q --format gguf:q4_0 --device cpu").exit_code, 0);
    EXPECT_EQ(run("evaluate verify " + preset + "-q --device cpu").exit_code, 0);
    ASSERT_EQ(run("convert to bf16 " + preset + "-q/model.gguf " + preset + "-back").exit_code, 0);
    const Json here = Json::parse(std::ifstream(dir / (preset + "/config.json"))),
               there = Json::parse(std::ifstream(dir / (preset + "-back/config.json")));
    for (const char* key : {"architectures", "model_type", "tie_word_embeddings", "vocab_size"})
      EXPECT_EQ(there[key], here[key]) << key;
  }
}

TEST_F(GgufCommands, CalibrationHelpsTheEncoder) {
  ASSERT_EQ(run("quantize rtn " + kDemo + " out --effort best --format gguf:q4_0" + kFast).exit_code, 0);
  const Json report = Json::parse(std::ifstream(dir / "out/quant_report.json"));
  double loss = 0, plain = 0;
  for (const Json& l : report["linears"]) {
    loss += l["loss"].get<double>();
    plain += l["loss_rtn"].get<double>();
  }
  EXPECT_GT(plain, 0);
  EXPECT_LT(loss, 0.95 * plain);
}

TEST_F(GgufCommands, MixesAndMistakesAreToldByThePlan) {
  const Json plan =
      json("quantize plan rtn " + kDemo + " --format gguf:q4_k --set '*.down_proj=format=gguf:q6_k' --device cpu");
  int six = 0;
  for (const Json& l : plan["linears"]) six += l["packing"] == "q6_k";
  EXPECT_EQ(six, 4);
  EXPECT_EQ(
      run("quantize plan rtn " + kDemo + " --format gguf:q4_k --set '*.down_proj=format=gptq' --device cpu").exit_code,
      1);
}

TEST_F(GgufCommands, ConversionKeepsValuesAndTheFileStandsAlone) {
  ASSERT_EQ(run("convert to gguf " + kDemo + " m.gguf").exit_code, 0);
  EXPECT_EQ(perplexity("m.gguf"), perplexity(kDemo));  // bf16 in both
  const Json here = json("convert inspect m.gguf --checksums"),
             there = json("convert inspect " + kDemo + " --checksums");
  EXPECT_EQ(here["checksums"], there["checksums"]);
  EXPECT_GT(here["checksums"].size(), 30u);
  const std::string prompt = " --prompt 'The old harbour' --max-tokens 8 --device cpu";
  EXPECT_EQ(json("runner generate m.gguf" + prompt)["text"], json("runner generate " + kDemo + prompt)["text"]);
  ASSERT_EQ(run("quantize gptq m.gguf q" + kFastest).exit_code, 0);  // a .gguf as the source
  EXPECT_EQ(run("evaluate verify q --device cpu").exit_code, 0);
  EXPECT_EQ(run("convert to gguf " + kDemo + " m.gguf").exit_code, 2);  // exists
  const ProcessResult refused = run("convert to gguf q no.gguf");
  EXPECT_EQ(refused.exit_code, 1);
  EXPECT_NE(refused.err.find("groups of 32 inputs, not 128"), std::string::npos) << refused.err;
  EXPECT_FALSE(fs::exists(dir / "no.gguf"));
  EXPECT_EQ(run("convert to gguf:Q8_0 q yes.gguf").exit_code, 0);
}

}  // namespace
}  // namespace fewbit::test
