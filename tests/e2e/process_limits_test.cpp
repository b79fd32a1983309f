// Programs in a process that may not have much memory (ulimit -v, ulimit -d): they end within seconds, with a line.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>

#include "tests/support/command_test.h"
#include "tests/support/paths.h"

namespace fewbit::test {
namespace {

constexpr int kTimedOut = 124;  // of timeout(1)

class ProcessLimits : public CommandTest {
 protected:
  void SetUp() override {
    CommandTest::SetUp();
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    GTEST_SKIP() << "the sanitizers map terabytes";
#endif
  }
  ProcessResult within(const std::string& limit, const std::string& command) {
    return run("sh -c 'ulimit " + limit + " && exec timeout 30 " + command + "'");
  }
  // `ulimit -v` with so much beside what the program itself maps: a build with CUDA is large.
  std::string address_space(int64_t kib) const {
    return "-v " +
           std::to_string(static_cast<int64_t>(std::filesystem::file_size(in_build("bin/quantize")) >> 10) + kib);
  }
};

TEST_F(ProcessLimits, WhatMultipliesNothingRuns) {
  for (const char* command : {"quantize list", "evaluate --version", "runner --version", "convert --version"})
    for (const std::string& limit : {address_space(85000), std::string("-d 60000")}) {
      const ProcessResult r = within(limit, command);
      EXPECT_EQ(r.exit_code, 0) << command << " under " << limit << ": " << r.err;
      EXPECT_FALSE(r.out.empty()) << command << " under " << limit;
    }
}

TEST_F(ProcessLimits, WhatDoesNotFitIsOneLine) {
  const std::string small = " --samples 2 --seq-len 128 --device cpu";
  for (const std::string& command :
       {"quantize gptq " + kDemo + " out" + small, "quantize plan gptq " + kDemo + small,
        "evaluate perplexity " + kDemo + " --device cpu", "runner bench " + kDemo + " --device cpu"})
    for (const std::string& limit : {address_space(135000), address_space(240000), std::string("-d 60000")}) {
      const ProcessResult r = within(limit, command);
      EXPECT_NE(r.exit_code, kTimedOut) << command << " under " << limit;
      if (command.starts_with("evaluate") && r.exit_code == 0) continue;  // a small model, and few buffers
      EXPECT_EQ(r.exit_code, 1) << command << " under " << limit << ": " << r.out;
      EXPECT_EQ(std::count(r.err.begin(), r.err.end(), '\n'), 1) << command << " under " << limit << ": " << r.err;
      EXPECT_TRUE(r.err.find("limit") != std::string::npos || r.err.find("memory") != std::string::npos) << r.err;
    }
  EXPECT_FALSE(std::filesystem::exists(dir / "out"));
}

// The buffers of OpenBLAS are part of what the plan leaves room for.
TEST_F(ProcessLimits, WhatFitsRuns) {
  const ProcessResult r = within(address_space(900000),
                                 "quantize gptq " + kDemo + " out --samples 2 --seq-len 128 --device cpu --threads 2");
  EXPECT_EQ(r.exit_code, 0) << r.err;
}

class SmallMemory : public CommandTest {};

TEST_F(SmallMemory, APlanRefusesWhatARunRefusesInTheSameWords) {
  const std::string job = " gptq " + kDemo + " out --samples 2 --seq-len 128 --device cpu --max-host-memory 20MiB";
  const ProcessResult planned = run("quantize plan" + job), ran = run("quantize" + job);
  EXPECT_EQ(planned.exit_code, 1);
  EXPECT_EQ(ran.exit_code, 1);
  EXPECT_EQ(planned.err, ran.err);
  EXPECT_NE(planned.out.find("\nrefused: this run needs "), std::string::npos) << planned.out;
  const ProcessResult report = run("quantize plan" + job + " --json -");
  EXPECT_EQ(report.exit_code, 1);
  EXPECT_NE(json_of(report)["memory"]["refusal"], "");
}

TEST_F(SmallMemory, AutoIsRefusedBeforeItMeasures) {
  const std::string job = "quantize plan auto " + kDemo + " --samples 8 --seq-len 128 --device cpu --max-host-memory ";
  const ProcessResult r = run(job + "20MiB");
  EXPECT_EQ(r.exit_code, 1);
  EXPECT_EQ(r.out, "");
  EXPECT_EQ(r.err.find("quantize: auto measures with the whole model in memory"), 0u) << r.err;
  const std::string flag = "give it --max-host-memory ";
  const size_t at = r.err.find(flag);
  ASSERT_NE(at, std::string::npos) << r.err;
  // The smallest limit that would do does, with the states of the calibration on disk; what is chosen is the same.
  const std::string least = r.err.substr(at + flag.size(), r.err.find(' ', at + flag.size()) - at - flag.size());
  const Json small = json(job + least), large = json(job + "8GiB");
  EXPECT_FALSE(large["auto"].is_null());
  EXPECT_EQ(small["auto"], large["auto"]) << "under " << least;
}

}  // namespace
}  // namespace fewbit::test
