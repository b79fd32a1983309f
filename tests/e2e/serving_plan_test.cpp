// `runner plan`: its bytes against checkpoints that are really written, its floors against a bench that really ran.
#include "tests/support/command_test.h"

namespace fewbit::test {
namespace {

class ServingPlanCommand : public CommandTest {};

TEST_F(ServingPlanCommand, ARecipeHasTheBytesThatQuantizeWrites) {
  done("convert synth --preset tiny model");
  int number = 0;
  for (const char* recipe :
       {"rtn int4 g128", "rtn int4 g64 asym format=gptq", "rtn int8 g128 format=compressed-tensors", "rtn w8a8", "fp8",
        "rtn int3 g128 format=gptq", "rtn nvfp4", "rtn mxfp4"}) {
    const std::string out = "out" + std::to_string(++number);
    done("quantize '" + std::string(recipe) + "' model " + out + " --device cpu --quiet");
    const int64_t written = json("convert inspect " + out)["bytes"];
    const std::string device = " --device h200 --context 256";
    const Json planned = json("runner plan tiny --recipe '" + std::string(recipe) + "'" + device);
    const Json found = json("runner plan " + out + device);
    EXPECT_EQ(planned["checkpoint_bytes"], written) << recipe;
    EXPECT_EQ(found["checkpoint_bytes"], written) << recipe;
    EXPECT_EQ(planned["devices"][0]["step"], found["devices"][0]["step"]) << recipe;
    EXPECT_EQ(planned["devices"][0]["stored_step_ms"], found["devices"][0]["stored_step_ms"]) << recipe;
    EXPECT_EQ(planned["devices"][0]["kernels"], found["devices"][0]["kernels"]) << recipe;
  }
}

TEST_F(ServingPlanCommand, AMeasuredBenchIsComparedWithItsFloor) {
  done("convert synth --preset tiny model");
  done("runner bench model --device cpu --tokens 6,10 --prompt-tokens 20 --batch 2 --json bench.json");
  const Json bench = Json::parse(bytes_of_file(dir / "bench.json"));
  const Json m = json("runner plan model --device h100 --measured bench.json")["measured"];
  ASSERT_EQ(m["steps"].size(), 2U);
  EXPECT_EQ(m["device"], bench["device"]);
  for (size_t i = 0; i < 2; ++i) {
    const Json &step = m["steps"][i], &row = bench["rows"][i];
    EXPECT_EQ(step["bytes"], row["bytes_per_token"]);
    EXPECT_EQ(step["plan_bytes"], row["bytes_per_token"]);
    EXPECT_EQ(step["ms"], row["ms_per_token"]["mean"]);
    // By the bench's own rate the plan's floor is the bench's.
    EXPECT_NEAR(1 / step["over_read_floor"].get<double>(), row["floor_share"].get<double>(), 1e-9);
  }
  const ProcessResult r = run("runner plan model --device h100 --measured model/config.json");
  EXPECT_EQ(r.exit_code, 2);
  EXPECT_NE(r.err.find("expected the key \"kv_cache\""), std::string::npos) << r.err;
}

TEST_F(ServingPlanCommand, SeveralGpusAreATable) {
  const ProcessResult r = run("runner plan llama3-8b --device rtx4090,h200 --recipe 'gptq int4 g128' --price 1");
  EXPECT_EQ(r.exit_code, 0) << r.err;
  EXPECT_NE(r.out.find("GeForce RTX 4090"), std::string::npos) << r.out;
  EXPECT_NE(r.out.find("H200 SXM"), std::string::npos) << r.out;
  const Json j = json("runner plan llama3-8b --device rtx4090,h200 --recipe 'gptq int4 g128' --price 1");
  EXPECT_EQ(j["devices"].size(), 2U);
  EXPECT_GT(j["devices"][0]["step"]["ms"], j["devices"][1]["step"]["ms"]);
}

}  // namespace
}  // namespace fewbit::test
