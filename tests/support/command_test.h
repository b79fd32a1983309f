#pragma once
// Tests of the commands: each runs them as a user would, in a folder of its own.
#include <gtest/gtest.h>

#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <string>

#include "tests/support/paths.h"
#include "tests/support/process.h"
#include "tests/support/support.h"

namespace fewbit::test {

using Json = nlohmann::json;

inline const std::string kDemo = in_source("calib_data/demo-model");
inline const std::string kFast = " --samples 4 --seq-len 256 --device cpu";  // enough calibration to run
// Where nothing is asked of the quality: a quarter of the time.
inline const std::string kFastest = " --samples 2 --seq-len 128 --device cpu";

// What a command with --json - printed, whatever its exit code.
inline Json json_of(const ProcessResult& r) {
  const Json j = Json::parse(r.out, nullptr, false);
  EXPECT_FALSE(j.is_discarded()) << "exit " << r.exit_code << "\nout: " << r.out << "\nerr: " << r.err;
  return j;
}

class CommandTest : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!programs_built()) GTEST_SKIP() << "the programs are not built";
  }
  ProcessResult run(const std::string& command) { return run_program(command, dir.path().string()); }
  void done(const std::string& command) {
    const ProcessResult r = run(command);
    ASSERT_EQ(r.exit_code, 0) << command << "\n" << r.err;
  }
  // What the command prints with --json - behind it; it must succeed.
  Json json(const std::string& command) {
    const ProcessResult r = run(command + " --json -");
    EXPECT_EQ(r.exit_code, 0) << command << "\n" << r.err;
    return json_of(r);
  }

  // Names and bytes of the files of a checkpoint but report, card and their digests, which hold times.
  std::map<std::string, std::string> files(const std::string& out) const {
    std::map<std::string, std::string> all;
    for (const auto& entry : std::filesystem::directory_iterator(dir / out))
      if (const std::string name = entry.path().filename();
          name != "quant_report.json" && name != "README.md" && name != "SHA256SUMS")
        all[name] = bytes_of_file(entry.path());
    return all;
  }

  TempDir dir;
};

}  // namespace fewbit::test
