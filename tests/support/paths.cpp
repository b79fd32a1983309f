#include "tests/support/paths.h"

#include <cstdlib>

namespace fewbit::test {

std::string in_source(const std::string& relative) { return std::string(FEWBIT_SOURCE_DIR "/") + relative; }
std::string in_build(const std::string& relative) { return std::string(FEWBIT_BUILD_DIR "/") + relative; }

std::string reference_dir() {
  if (const char* dir = std::getenv("FEWBIT_TEST_REFERENCE")) return dir;
  return FEWBIT_REFERENCE_DIR;
}

std::string mpirun_path() { return FEWBIT_MPIRUN; }

}  // namespace fewbit::test
