// What a run says of the text that it was calibrated on.
#include <gtest/gtest.h>

#include <fstream>

#include "tests/support/command_test.h"

namespace fewbit::test {
namespace {

class CalibrationSummary : public CommandTest {};

TEST_F(CalibrationSummary, SaysHowMuchOfEachTextWasUsed) {
  std::ofstream(dir / "short.txt") << std::string(4000, 'a') + " few windows of " + std::string(4000, 'b');
  const ProcessResult all = run("quantize gptq " + kDemo + " all" + kFastest);
  EXPECT_NE(all.out.find("\ncalibrated on 256 tokens, 2 windows of 128: builtin\n"), std::string::npos) << all.out;
  EXPECT_EQ(all.out.find("warning"), std::string::npos) << all.out;
  const ProcessResult few =
      run("quantize gptq " + kDemo + " few --calib short.txt --samples 5000 --seq-len 128 --device cpu");
  EXPECT_EQ(few.exit_code, 0) << few.err;
  EXPECT_NE(few.out.find("\ncalibrated on "), std::string::npos) << few.out;
  EXPECT_NE(few.out.find(": short.txt\nwarning: windows of 128 tokens: short.txt holds "), std::string::npos)
      << few.out;
}

}  // namespace
}  // namespace fewbit::test
