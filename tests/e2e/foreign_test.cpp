// What the commands say of a checkpoint that another program would run in another way.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "tests/support/command_test.h"

namespace fewbit::test {
namespace {

class ForeignModel : public CommandTest {
 protected:
  // The demo model under a torchao config with this class; its linears are still plain.
  void write(const std::string& type) {
    std::filesystem::remove_all(dir / "m");
    std::filesystem::copy(kDemo, dir / "m");
    Json config = Json::parse(std::ifstream(dir / "m/config.json"));
    config["quantization_config"] = {{"quant_method", "torchao"}, {"quant_type", {{"default", {{"_type", type}}}}}};
    std::ofstream(dir / "m/config.json") << config.dump(1);
  }
};

TEST_F(ForeignModel, InputsThatStayUnroundedAreNamedOnceByEveryCommand) {
  const std::string commands[] = {
      "convert inspect m",
      "convert to bf16 m out --force",
      "quantize plan rtn m --device cpu",
      "quantize rtn m out --force --device cpu",
      "evaluate perplexity m --context 64 --max-windows 1 --device cpu",
      "evaluate perplexity m --offload --context 64 --max-windows 1 --device cpu",
      "runner generate m --prompt a --max-tokens 1 --device cpu",
      "runner bench m --tokens 2 --prompt-tokens 4 --device cpu",
      "runner bench m --concurrency 1 --tokens 2 --prompt-tokens 4 --requests 1 --device cpu"};
  const std::string note = "Int8DynamicActivationInt8WeightConfig rounds activations at run time";
  write("Int8DynamicActivationInt8WeightConfig");
  for (const std::string& command : commands) {
    const ProcessResult r = run(command);
    const std::string all = r.out + r.err;
    EXPECT_EQ(r.exit_code, 0) << command << "\n" << all;
    const size_t at = all.find(note);
    ASSERT_NE(at, std::string::npos) << command << "\n" << all;
    EXPECT_EQ(all.find(note, at + 1), std::string::npos) << command << " says it twice\n" << all;
  }
  EXPECT_EQ(json("convert inspect m")["notes"].size(), 1u);
  write("Int8WeightOnlyConfig");
  EXPECT_EQ(json("convert inspect m")["notes"].size(), 0u);
}

}  // namespace
}  // namespace fewbit::test
