// 2:4 sparsity as a user types it: written as marlin-24, verified, run, moved to other formats and back.
#include <gtest/gtest.h>

#include <filesystem>

#include "tests/support/command_test.h"

namespace fewbit::test {
namespace {

constexpr double kSamePerplexity = 1e-3;

class Sparse : public CommandTest {};

TEST_F(Sparse, WrittenVerifiedRunAndConvertedBack) {
  done("quantize 'gptq int4 g128 sparse=2:4' " + kDemo + " sparse" + kFastest);
  done("evaluate verify sparse");
  const Json j =
      json("evaluate perplexity sparse --device cpu --dtype float32 --context 256 --max-windows 2 --reference");
  EXPECT_LT(std::abs(j["reference"]["relative_difference"].get<double>()), kSamePerplexity);
  const Json config = Json::parse(bytes_of_file(dir / "sparse/config.json"))["quantization_config"];
  EXPECT_EQ(config["quant_method"], "compressed-tensors");
  EXPECT_EQ(config["format"], "marlin-24");
  EXPECT_EQ(config["sparsity_config"]["sparsity_structure"], "2:4");
  const Json report = Json::parse(bytes_of_file(dir / "sparse/quant_report.json"));
  EXPECT_NEAR(report["bits_per_weight"].get<double>(), 3.125, 1e-9);
  for (const char* format : {"gptq", "compressed-tensors", "marlin"}) {
    const std::string there = std::string("as-") + format, back = "back-" + std::string(format);
    done(std::string("convert to ") + format + " sparse " + there);
    done("convert to marlin-24 " + there + " " + back);
    EXPECT_EQ(bytes_of_file(dir / back / "model.safetensors"), bytes_of_file(dir / "sparse/model.safetensors"))
        << format;
  }
}

TEST_F(Sparse, WhatIsNotSparseIsNotWrittenAsIfItWere) {
  done("quantize 'rtn int4 g128 format=compressed-tensors' " + kDemo + " dense" + kFastest);
  EXPECT_NE(run("convert to marlin-24 dense out").err.find("two weights of every four inputs"), std::string::npos);
  EXPECT_FALSE(std::filesystem::exists(dir / "out"));
  const ProcessResult kept =
      run("quantize 'rtn int4 g128 sparse=2:4' dense out --keep-source-grid '*down*' --device cpu");
  EXPECT_NE(kept.exit_code, 0);
  EXPECT_NE((kept.out + kept.err).find("two weights of every four inputs"), std::string::npos) << kept.out << kept.err;
  const ProcessResult engine = run("quantize plan 'gptq int4 g128 sparse=2:4' " + kDemo + " --for vllm");
  EXPECT_NE(engine.exit_code, 0);
  EXPECT_NE((engine.out + engine.err).find("engines have dropped 2:4 sparsity"), std::string::npos);
}

}  // namespace
}  // namespace fewbit::test
