// A fuzz target: libFuzzer's bytes go to one of the readers that the tests of hostile input use (tests/hostile). The
// build names the reader. A result or an Error is fine; whatever else ends the process is a finding.
#include <cstdint>
#include <filesystem>
#include <string>

#include <unistd.h>

#include "src/core/error.h"
#include "tests/hostile/readers.h"

namespace {

// A folder in memory for readers that open a file.
const std::filesystem::path& scratch() {
  static const std::filesystem::path folder = [] {
    const auto p = std::filesystem::path("/dev/shm") / ("fewbit-fuzz-" + std::to_string(::getpid()));
    std::filesystem::create_directories(p);
    return p;
  }();
  return folder;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  try {
    fewbit::test::FEWBIT_FUZZ_READER(std::string(reinterpret_cast<const char*>(data), size), scratch());
  } catch (const fewbit::Error&) {
  }
  return 0;
}
