// `auto schemes=`: each scheme written and reopened, and a mix of several: verified, the same perplexity as
// dequantized, the same bytes whatever the threads.
#include <gtest/gtest.h>

#include <set>

#include "tests/support/command_test.h"

namespace fewbit::test {
namespace {

constexpr double kSamePerplexity = 1e-3;

class SchemesOfFiles : public CommandTest {
 protected:
  // Quantizes into OUT, judges it, and says which schemes the report has.
  std::set<std::string> written(const std::string& recipe, const std::string& out, const std::string& flags = "") {
    done("quantize 'auto " + recipe + " effort=quick' " + kDemo + " " + out + kFastest + flags);
    done("evaluate verify " + out);
    const Json j =
        json("evaluate perplexity " + out + " --device cpu --dtype float32 --context 256 --max-windows 2 --reference");
    EXPECT_LT(std::abs(j["reference"]["relative_difference"].get<double>()), kSamePerplexity) << recipe;
    std::set<std::string> specs;
    const Json report = Json::parse(bytes_of_file(dir / out / "quant_report.json"));
    for (const Json& c : report["auto"]["choices"]) {
      specs.insert(c["spec"]);
      EXPECT_FALSE(c["offered"].empty());
    }
    return specs;
  }
};

TEST_F(SchemesOfFiles, EachIsReopenedAsItWasMade) {
  for (const char* word : {"int2", "int3", "int4", "int8", "nvfp4", "mxfp4", "fp8", "bf16"})
    for (const std::string& spec : written(std::string("target-bits=16 schemes=") + word, word))
      EXPECT_EQ(spec.rfind(word, 0), 0u) << spec;
}

TEST_F(SchemesOfFiles, AMixIsOneFileWithTheSameBytesTwice) {
  const std::string recipe = "schemes=int3,int4,nvfp4,fp8,int8,bf16 target-bits=6";
  EXPECT_GT(written(recipe, "one", " --threads 1").size(), 1u);
  written(recipe, "two", " --threads 2");
  EXPECT_EQ(files("one"), files("two"));
}

TEST_F(SchemesOfFiles, AWholeCheckpointOfASize) {
  written("schemes=all budget=3MiB", "small");
  EXPECT_LE(bytes_of_file(dir / "small/model.safetensors").size(), size_t{3} * 1024 * 1024 + 64 * 1024);
  EXPECT_NE(run("quantize 'auto schemes=all budget=1MiB' " + kDemo + " none").err.find("--budget"), std::string::npos);
}

}  // namespace
}  // namespace fewbit::test
