#pragma once
// Runs the built programs as a user would.
#include <string>
#include <vector>

namespace fewbit::test {

struct ProcessResult {
  int exit_code = -1;
  std::string out, err;
};
// `command` begins with a program's name ("quantize gptq model out"); it runs in `folder` through the shell.
ProcessResult run_program(const std::string& command, const std::string& folder = "");
bool programs_built();

}  // namespace fewbit::test
