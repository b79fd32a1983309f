// What is installed: works wherever it is moved, and serves other projects' builds.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "tests/support/command_test.h"

namespace fewbit::test {
namespace {

namespace fs = std::filesystem;

std::string text_in(const fs::path& file) {
  std::stringstream s;
  s << std::ifstream(file).rdbuf();
  return s.str();
}

class Package : public CommandTest {
 protected:
  // Installed in one place and moved to another.
  void install() {
    done("cmake --install " + in_build("") + " --prefix " + (dir / "first").string());
    fs::rename(dir / "first", dir / "second");
  }
};

TEST_F(Package, MovedProgramsFindTheirDataAndBringPagesAndCompletions) {
  install();
  const ProcessResult r = run("second/bin/convert inspect");
  EXPECT_EQ(r.exit_code, 0) << r.err;
  EXPECT_NE(r.out.find("second/share/fewbit/demo-model"), std::string::npos) << r.out;
  for (const std::string program : {"quantize", "evaluate", "runner", "convert"}) {
    const std::string page = text_in(dir / "second/share/man/man1" / (program + ".1"));
    EXPECT_EQ(page.find(".TH "), 0u) << program;
    EXPECT_NE(page.find("\\-\\-json"), std::string::npos) << program;
    EXPECT_NE(text_in(dir / "second/share/bash-completion/completions" / program).find("complete -o"),
              std::string::npos)
        << program;
  }
  EXPECT_NE(text_in(dir / "second/share/doc/fewbit/docs/guide.md").find("vllm serve"), std::string::npos);
}

TEST_F(Package, ProgramsStartWithoutTheLibrariesOfAGpu) {
  for (const std::string program : {"quantize", "evaluate", "runner", "convert"}) {
    const ProcessResult r = run("ldd " + in_build("bin/" + program));
    ASSERT_EQ(r.exit_code, 0) << r.err;
    ASSERT_NE(r.out.find("libc.so"), std::string::npos) << r.out;
    for (const char* library : {"libcublas", "libcusolver", "libcusparse"})
      EXPECT_EQ(r.out.find(library), std::string::npos) << program << "\n" << r.out;
  }
}

TEST_F(Package, TheExampleBuildsAgainstAMovedTreeAndReadsACheckpoint) {
  install();
  done("cmake -G Ninja -S second/share/doc/fewbit/examples/read_checkpoint -B example -DCMAKE_PREFIX_PATH=" +
       (dir / "second").string());
  done("cmake --build example");
  const ProcessResult r = run("example/read_checkpoint " + kDemo);
  EXPECT_EQ(r.exit_code, 0) << r.err;
  EXPECT_NE(r.out.find("model.norm.weight bf16 [256] "), std::string::npos) << r.out.substr(0, 400);
  const ProcessResult none = run("example/read_checkpoint nowhere");
  EXPECT_EQ(none.exit_code, 1);
  EXPECT_NE(none.err.find("nowhere"), std::string::npos) << none.err;
}

// Archives that the exported targets name, and the headers that theirs include, come with packages that fewbit-dev
// depends on.
TEST_F(Package, FewbitDevDependsOnWhatItsTargetsLink) {
  if (run("dpkg --version").exit_code != 0) GTEST_SKIP() << "no dpkg here";
  install();
  const std::string described = text_in(in_build("CPackConfig.cmake"));
  const std::string targets = text_in(dir / "second/lib/cmake/fewbit/fewbit-targets.cmake");
  int archives = 0;
  for (size_t end = targets.find(".a"); end != std::string::npos; end = targets.find(".a", end + 1)) {
    const std::string path = targets.substr(0, end + 2);
    const std::string archive = path.substr(path.find_last_of(":;\"") + 1);
    if (archive[0] != '/') continue;
    const ProcessResult owner = run("dpkg -S $(realpath " + archive + ")");
    if (owner.exit_code != 0) continue;  // not of a package
    ++archives;
    const std::string package = owner.out.substr(0, owner.out.find(':'));
    EXPECT_NE(described.find(package), std::string::npos) << archive << " is of " << package;
  }
  EXPECT_GE(archives, 2) << targets;
  for (const char* package : {"nlohmann-json3-dev", "libfmt-dev", "libxxhash-dev", "PROGRAMS_PACKAGE_DEPENDS"})
    EXPECT_NE(described.find(package), std::string::npos) << package;
}

}  // namespace
}  // namespace fewbit::test
