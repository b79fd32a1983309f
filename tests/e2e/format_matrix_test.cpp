// Every method in every format that takes it: written, reopened, and judged. `evaluate verify` compares what the files
// unpack to with the codes that the method made; `--reference` compares the packed kernels with the dequantized model.
#include <gtest/gtest.h>

#include "formats/checkpoint_format.h"
#include "tests/support/command_test.h"

namespace fewbit::test {
namespace {

// Four thousand tokens: the dequantized model rounds its weights to bf16 and no activations to FP8, which moves so
// short a text by 0.1 %.
constexpr double kFewTokens = 3e-3;

class FormatMatrix : public CommandTest, public ::testing::WithParamInterface<const char*> {};

TEST_P(FormatMatrix, WhatIsReopenedScoresAsWhatWasMade) {
  int written = 0;
  for (const CheckpointFormat* format : checkpoint_formats()) {
    const std::string recipe = std::string(GetParam()) + " format=" + std::string(format->name);
    SCOPED_TRACE(recipe);
    const std::string arguments = "\"" + recipe + "\" " + kDemo + " out-" + std::string(format->name) + kFastest;
    const ProcessResult q = run("quantize " + arguments);
    if (q.exit_code != 0) {  // refused before anything was computed, with a reason
      EXPECT_EQ(run("quantize plan " + arguments).exit_code, q.exit_code) << q.err;
      EXPECT_FALSE(q.err.empty());
      continue;
    }
    ++written;
    const std::string out = "out-" + std::string(format->name);
    const ProcessResult v = run("evaluate verify " + out);
    EXPECT_EQ(v.exit_code, 0) << v.out << v.err;
    const Json j = json("evaluate perplexity " + out + " --device cpu --context 256 --max-windows 16 --reference");
    EXPECT_LT(std::abs(j["reference"]["relative_difference"].get<double>()), kFewTokens) << j;
  }
  EXPECT_GT(written, 0);
}

INSTANTIATE_TEST_SUITE_P(Recipes, FormatMatrix,
                         ::testing::Values("rtn int4 g128", "rtn int8 g128", "gptq int4 g128 effort=quick",
                                           "gptq int4 g64 asym effort=quick", "gptq int3 g128 effort=quick",
                                           "awq int4 g128 effort=quick", "awq+gptq int4 g128 effort=quick", "rtn w8a8",
                                           "smoothquant", "fp8", "gptq w4a4 effort=quick", "rtn mxfp4 acts=token",
                                           "auto target-bits=4.5 effort=quick",
                                           "auto schemes=int3,int4,nvfp4,fp8,bf16 target-bits=5 effort=quick"),
                         [](const auto& info) {
                           std::string name = info.param;
                           for (char& c : name)
                             if (!std::isalnum(static_cast<unsigned char>(c))) c = '_';
                           return name;
                         });

}  // namespace
}  // namespace fewbit::test
