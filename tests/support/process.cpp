#include "tests/support/process.h"

#include <sys/wait.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "tests/support/paths.h"
#include "tests/support/support.h"

namespace fewbit::test {
namespace {

std::string slurp(const std::filesystem::path& p) {
  std::ifstream in(p, std::ios::binary);
  std::stringstream s;
  s << in.rdbuf();
  return s.str();
}

}  // namespace

ProcessResult run_program(const std::string& command, const std::string& folder) {
  const TempDir tmp;
  std::string line = folder.empty() ? "" : "cd '" + folder + "' && ";
  // What commands keep for the user stays out of the home of whoever runs the tests.
  line += "XDG_CACHE_HOME='" + (tmp / "cache").string() + "' ";
  line += "PATH='" + in_build("bin") + "':\"$PATH\" " + command + " >'" + (tmp / "out").string() + "' 2>'" +
          (tmp / "err").string() + "'";
  const int status = std::system(line.c_str());
  return {WIFEXITED(status) ? WEXITSTATUS(status) : -1, slurp(tmp / "out"), slurp(tmp / "err")};
}

bool programs_built() { return std::filesystem::exists(in_build("bin/quantize")); }

}  // namespace fewbit::test
