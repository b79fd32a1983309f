#include "src/core/threads/run_delay.h"

#include <fcntl.h>
#include <unistd.h>

#include <charconv>
#include <string>
#include <string_view>

namespace fewbit {

void RunDelay::watch_this_thread() {
  if (file_ >= 0) close(file_);
  file_ = open(("/proc/self/task/" + std::to_string(gettid()) + "/schedstat").c_str(), O_RDONLY | O_CLOEXEC);
}

RunDelay::~RunDelay() {
  if (file_ >= 0) close(file_);
}

// The line has three numbers: nanoseconds on a processor, nanoseconds waiting for one, and slices.
std::chrono::nanoseconds RunDelay::total() const {
  char line[96];
  const int file = file_;
  const ssize_t n = file < 0 ? 0 : pread(file, line, sizeof line, 0);
  const std::string_view text(line, n > 0 ? static_cast<size_t>(n) : 0);
  const size_t second = text.find(' ');
  int64_t waited = 0;
  if (second != std::string_view::npos) std::from_chars(text.data() + second + 1, text.data() + text.size(), waited);
  return std::chrono::nanoseconds(waited);
}

}  // namespace fewbit
