// quantize on several ranks: the same bytes as one process writes, whatever is shared, stopped or killed.
#include <fmt/format.h>

#include <algorithm>
#include <fstream>

#include "src/core/stopwatch.h"
#include "src/model/synth/synth.h"
#include "tests/support/command_test.h"
#include "tests/support/mpirun.h"

namespace fewbit::test {
namespace {

namespace fs = std::filesystem;

// Three chunks, of a window each; two of the four blocks are enough.
constexpr const char* kWindows =
    " --samples 3 --seq-len 1030 --device cpu --threads 1 --keep 'model.layers.2.*' --keep 'model.layers.3.*' ";

class QuantizeOnRanks : public CommandTest {
 protected:
  void SetUp() override { CommandTest::SetUp(); }
  ProcessResult on(int ranks, const std::string& command) {
    return ranks == 1 ? run(command) : run_ranks(ranks, command, 120, dir.path().string());
  }
  // What the command writes into the OUT named `out`: every byte of weights, and the records less the times.
  std::string written(int ranks, const std::string& arguments, const std::string& out, const std::string& more = "") {
    const ProcessResult r = on(ranks, "quantize " + arguments + " " + out + more);
    EXPECT_EQ(r.exit_code, 0) << arguments << " on " << ranks << "\n" << r.out << r.err;
    if (r.exit_code != 0) return "failed";
    EXPECT_FALSE(fs::exists(dir / (out + ".partial")));
    return contents(out);
  }
  // Calibration with windows of ids, for models without a tokenizer.
  std::string ids(int64_t count, int64_t length) const {
    std::vector<int32_t> ids(static_cast<size_t>(count * length));
    for (size_t i = 0; i < ids.size(); ++i) ids[i] = static_cast<int32_t>(i * i % 379);
    auto writer = container_safetensors.create(dir / "ids", {});
    writer->add("input_ids", Tensor::host_from<int32_t>(DType::i32, {count, length}, ids));
    writer->finish();
    return fmt::format(" --calib ids/model.safetensors --samples {} --device cpu --threads 1 ", count);
  }
  std::string contents(const std::string& out) const {
    std::string all;
    for (const auto& file : fs::directory_iterator(dir / out))
      if (const std::string e = file.path().extension(); e == ".safetensors" || e == ".gguf")
        all += bytes_of_file(file.path());
    EXPECT_FALSE(all.empty());
    Json report = Json::parse(std::ifstream(dir / (out + "/quant_report.json")));
    for (Json& l : report["linears"]) l.erase("seconds");
    return all + report["linears"].dump() + report["experts"].dump() + report["kv_scales"].dump();
  }
};

class SameBytes : public QuantizeOnRanks, public ::testing::WithParamInterface<const char*> {};

TEST_P(SameBytes, OnAnyNumberOfRanks) {
  const std::string arguments = GetParam() + (" " + kDemo);
  const std::string one = written(1, arguments, "one", kWindows);
  for (const int ranks : {2, 3})
    EXPECT_TRUE(written(ranks, arguments, fmt::format("on{}", ranks), kWindows) == one) << ranks << " ranks";
}
INSTANTIATE_TEST_SUITE_P(
    Recipes, SameBytes,
    ::testing::Values("rtn", "gptq", "awq+gptq --effort quick --keep '*.1.*' --quiet",
                      "smoothquant --keep '*.1.*' --quiet", "'gptq fp8' --kv-cache fp8 --keep '*.1.*' --quiet",
                      "'fp8 block128'",
                      "'gptq int4 asym act=full' --set "
                      "model.embed_tokens=int8 --format compressed-tensors --keep '*.q_proj' --quiet",
                      "rtn --effort best --format gguf:q4_k"));

TEST_F(QuantizeOnRanks, MoreRanksThanChunksAndLearnedRounding) {
  done("convert synth --preset tiny tiny");
  const std::string arguments = "'gptq int3 g32 effort=best' tiny", windows = ids(10, 16);
  const std::string one = written(1, arguments, "one", windows);
  EXPECT_TRUE(written(3, arguments, "on3", windows) == one);
}

// A mixture of experts that is calibrated with ids, for the model has no tokenizer.
class ExpertsOnRanks : public QuantizeOnRanks, public ::testing::WithParamInterface<const char*> {};

TEST_P(ExpertsOnRanks, WriteTheSameBytes) {
  FEWBIT_NEEDS_REFERENCE("goldens/models/qwen3-moe");
  const std::string arguments = fmt::format("{} {}", GetParam(), reference("goldens/models/qwen3-moe").string()),
                    calibration = ids(40, 128);
  const std::string one = written(1, arguments, "one", calibration);
  for (const int ranks : {2, 3})
    EXPECT_TRUE(written(ranks, arguments, fmt::format("on{}", ranks), calibration) == one) << ranks << " ranks";
}
INSTANTIATE_TEST_SUITE_P(Recipes, ExpertsOnRanks,
                         ::testing::Values("gptq", "rtn", "awq --effort quick", "'gptq w8a8' --acts tensor"));

// The smallest limit that a refusal names, and a little for what ranks send each other.
TEST_F(QuantizeOnRanks, ExpertsWhoseWeightsComeInWaves) {
  done("convert synth --preset tiny-moe tiny");
  Json config = Json::parse(std::ifstream(dir / "tiny/config.json"));
  config["num_experts"] = 24;
  config["moe_intermediate_size"] = 256;
  config["num_hidden_layers"] = 1;
  synthesize(dir / "model", {.config = config.dump()}, {});
  const std::string arguments = "'gptq int4 g64 effort=quick' model", calibration = ids(12, 128);
  const auto memory_at = [&](int64_t mib) {
    const ProcessResult r =
        run(fmt::format("quantize plan {}{}--host-memory {}MiB --json -", arguments, calibration, mib));
    return Json::parse(r.out).at("memory");
  };
  const int64_t limit = (memory_at(1).at("least_host_bytes").get<int64_t>() >> 20) + 3;
  EXPECT_TRUE(memory_at(limit).at("experts_in_waves").get<bool>());
  const std::string one = written(1, arguments, "one", calibration);
  const std::string limited = fmt::format("{}--max-host-memory {}MiB ", calibration, limit);
  for (const int ranks : {1, 2, 3})
    EXPECT_TRUE(written(ranks, arguments, fmt::format("on{}", ranks), limited) == one) << ranks << " ranks";
}

// Kills rank 1 when the second block is sealed: all end, and the run goes on with another number of ranks.
TEST_F(QuantizeOnRanks, KilledAndResumedOnAnotherNumber) {
  const std::string arguments = "gptq " + kDemo, one = written(1, arguments, "one", kWindows);
  std::ofstream(dir / "member.sh")
      << "quantize " << arguments << " out" << kWindows << "&\nq=$!\n"
      << "if [ \"${OMPI_COMM_WORLD_RANK:-${PMI_RANK:-$FEWBIT_RANK}}\" = 1 ]; then\n"
      << "  while ! grep -qs '\"layer\":1,' out.partial/journal && kill -0 $q; do sleep 0.01; done\n"
      << "  kill -9 $q\nfi\nwait $q\n";
  const ProcessResult killed = run_ranks(3, "sh member.sh", 60, dir.path().string());
  EXPECT_NE(killed.exit_code, 0);
  EXPECT_NE(killed.exit_code, 124) << killed.err;
  EXPECT_NE(killed.err.find("quantize: rank 1 on "), std::string::npos) << killed.err;
  EXPECT_NE(killed.err.find(" is gone without a word (killed, or out of memory) in block "), std::string::npos)
      << killed.err;
  ASSERT_TRUE(fs::exists(dir / "out.partial")) << killed.err;
  EXPECT_TRUE(written(2, arguments, "out", std::string(kWindows) + "--resume") == one);
}

TEST_F(QuantizeOnRanks, StandsForOneRunThatIsRefusedOrFinishedOnce) {
  const std::string command = "quantize rtn " + kDemo + " out --device cpu --threads 1";
  ASSERT_EQ(on(2, command).exit_code, 0);
  const ProcessResult again = on(2, command);
  EXPECT_EQ(again.exit_code, 2) << again.err;
  EXPECT_NE(again.err.find("quantize: rank 0 on "), std::string::npos) << again.err;
  EXPECT_NE(again.err.find("out exists"), std::string::npos) << again.err;
  // A launcher that ends the others is obeyed at once; its shell may say in a line of its own that it did.
  const ProcessResult alone = run_local_ranks(2, command, 120, dir.path().string());
  EXPECT_EQ(alone.exit_code, 2) << alone.err;
  EXPECT_LE(std::count(alone.err.begin(), alone.err.end(), '\n'), 2) << alone.err;
  const ProcessResult finished = on(2, command + " --resume");
  EXPECT_EQ(finished.exit_code, 0) << finished.err;
  EXPECT_NE(finished.out.find("is finished"), std::string::npos) << finished.out;
  EXPECT_EQ(on(2, "quantize plan rtn " + kDemo).exit_code, 2);  // one process is enough for a plan
}

}  // namespace
}  // namespace fewbit::test
