// `evaluate certify`: the verdict by kind of text, its files, and what it does to a checkpoint's card.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "tests/support/command_test.h"

namespace fewbit::test {
namespace {

class Certify : public CommandTest {};

TEST_F(Certify, ACheckpointThatIsTooFarFailsInEveryDomainByName) {
  done("quantize 'rtn int4 g128' " + kDemo + " out --device cpu");
  const ProcessResult r =
      run("evaluate certify " + kDemo + " out --max-kl-domain 0.001 --card --html page.html --json - --device cpu");
  EXPECT_EQ(r.exit_code, 1) << r.err;
  const Json c = json_of(r);
  EXPECT_FALSE(c["passed"].get<bool>());
  ASSERT_GT(c["domains"].size(), 1u);
  for (const Json& domain : c["domains"])
    EXPECT_NE(r.err.find(domain["name"].get<std::string>()), std::string::npos) << domain["name"] << "\n" << r.err;
  for (const Json& failure : c["failures"])
    EXPECT_NE(r.err.find("\n  " + failure.get<std::string>()), std::string::npos) << failure << "\n" << r.err;
  EXPECT_TRUE(std::filesystem::exists(dir / "page.html"));
  // The card that it wrote is part of what verify expects.
  EXPECT_NE(bytes_of_file(dir / "out/README.md").find("## Certificate"), std::string::npos);
  const ProcessResult v = run("evaluate verify out --device cpu");
  EXPECT_EQ(v.exit_code, 0) << v.err;
  EXPECT_EQ(v.out.find("warning"), std::string::npos) << v.out;
  std::ofstream(dir / "out/certificate.json", std::ios::app) << " ";
  EXPECT_EQ(run("evaluate verify out --device cpu").exit_code, 1) << "a certificate that was edited";
}

TEST_F(Certify, FilesThatCannotBeWrittenAreRefusedBeforeTheWork) {
  for (const std::string flag : {"--html", "--markdown"}) {
    const ProcessResult r = run("evaluate certify nowhere out " + flag + " no/folder/x --device cpu");
    EXPECT_EQ(r.exit_code, 2) << r.err;
    EXPECT_NE(r.err.find("no/folder/x: cannot be written"), std::string::npos) << r.err;
  }
}

}  // namespace
}  // namespace fewbit::test
