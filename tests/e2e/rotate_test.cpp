// `quantize rotate+…`: what is written, that it verifies and is made again byte for byte, and what is refused.
#include <gtest/gtest.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "tests/support/command_test.h"

namespace fewbit::test {
namespace {

namespace fs = std::filesystem;

class RotateCommand : public CommandTest {
 protected:
  static constexpr const char* kCalib = " --calib builtin --samples 4 --seq-len 64 --quiet";
  nlohmann::json config(const std::string& out) {
    return nlohmann::json::parse(bytes_of_file(dir / out / "config.json"));
  }
};

TEST_F(RotateCommand, RoundsInputsToInt4AndVerifies) {
  done("quantize 'rotate+gptq int4 acts=token4' " + kDemo + " a" + kCalib);
  done("evaluate verify a");
  const nlohmann::json c = config("a"), q = c["quantization_config"];
  EXPECT_EQ(c["tie_word_embeddings"], false);
  EXPECT_EQ(q["config_groups"]["group_0"]["input_activations"]["num_bits"], 4);
  EXPECT_EQ(q["config_groups"]["group_0"]["input_activations"]["dynamic"], true);
  EXPECT_EQ(q["config_groups"]["group_0"]["input_activations"]["observer_kwargs"]["clip_ratio"], 0.8);
  EXPECT_EQ(q["config_groups"].size(), 1U);
  const nlohmann::json turned = q["transform_config"]["config_groups"]["R4_256"];  // of 256 and 768 inputs
  EXPECT_EQ(turned["type"], "hadamard");
  EXPECT_EQ(turned["head_dim"], 256);
  EXPECT_EQ(turned["apply"][0]["location"], "input");
  EXPECT_EQ(turned["apply"][0]["targets"].size(), 8U);
  EXPECT_EQ(turned["apply"][0]["targets"], turned["apply"][1]["targets"]);
}

TEST_F(RotateCommand, TheSeedDecidesTheBytes) {
  done("quantize 'rotate+rtn int4 g64 rotation=5' " + kDemo + " a --quiet");
  done("quantize 'rotate+rtn int4 g64 rotation=5' " + kDemo + " b --quiet");
  done("quantize 'rotate+rtn int4 g64' " + kDemo + " c --quiet");
  EXPECT_EQ(bytes_of_file(dir / "a/model.safetensors"), bytes_of_file(dir / "b/model.safetensors"));
  EXPECT_NE(bytes_of_file(dir / "a/model.safetensors"), bytes_of_file(dir / "c/model.safetensors"));
  done("evaluate verify a");
}

TEST_F(RotateCommand, ThePlanSaysHowAndWhatTheHeadCosts) {
  const ProcessResult r = run("quantize plan 'rotate+gptq int4 acts=token4' " + kDemo);
  EXPECT_EQ(r.exit_code, 0) << r.err;
  EXPECT_NE(r.out.find("residual stream 256"), std::string::npos) << r.out;
  EXPECT_NE(r.out.find("2.00 MiB more"), std::string::npos) << r.out;
  EXPECT_NE(r.out.find("turned by Hadamard matrices of 256"), std::string::npos) << r.out;
  EXPECT_NE(r.out.find("clip=0.8"), std::string::npos) << r.out;
  const ProcessResult whole = run("quantize plan 'rotate+gptq int4 acts=token4 clip=1' " + kDemo);
  EXPECT_EQ(whole.out.find("clip=0.8"), std::string::npos) << whole.out;
  const ProcessResult flat = run("quantize plan 'gptq int4 acts=token4' " + kDemo);
  EXPECT_EQ(flat.out.find("clip="), std::string::npos) << "rows that nothing has spread have outliers";
}

// What a matrix does not spread keeps its whole range.
TEST_F(RotateCommand, BalancedInputsAreWrittenAndVerify) {
  done("quantize 'balance+gptq int4' " + kDemo + " a" + kCalib);
  done("evaluate verify a");
  const nlohmann::json groups = config("a")["quantization_config"]["config_groups"];
  ASSERT_EQ(groups.size(), 2U);
  for (const auto& [key, group] : groups.items()) {
    const std::string name = group["targets"][0];
    const bool spread = name.find("o_proj") != std::string::npos || name.find("down_proj") != std::string::npos;
    EXPECT_EQ(group["input_activations"].contains("observer_kwargs"), spread) << group;
  }
}

TEST_F(RotateCommand, RefusesWhatHasNoMeaning) {
  for (const auto& [recipe, what] : {std::pair{"gptq rotation=3", "rotate+gptq"},
                                     {"rotate+gptq online=on", "acts=token4"},
                                     {"rtn nvfp4 acts=token4", "4-bit floats"},
                                     {"fp8 acts=token4", "integers"}}) {
    const ProcessResult r = run(std::string("quantize '") + recipe + "' " + kDemo + " out");
    EXPECT_NE(r.exit_code, 0) << recipe;
    EXPECT_NE(r.err.find(what), std::string::npos) << r.err;
  }
  EXPECT_FALSE(fs::exists(dir / "out") || fs::exists(dir / "out.partial"));
}

}  // namespace
}  // namespace fewbit::test
