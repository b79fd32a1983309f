// A signal handler may ask nothing of the heap and wait for no lock, so that names stand in a table of fixed size that
// lives as long as the process; an entry is taken and given back by one atomic step.
#include "src/core/files/bus_error.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <csignal>
#include <cstdint>
#include <cstring>
#include <string_view>

namespace fewbit {
namespace {

constexpr size_t kRanges = 4096, kNameBytes = 248;
constexpr uintptr_t kFree = 0, kBeingFilled = 1;  // neither is the address of a page

struct Range {
  std::atomic<uintptr_t> begin = kFree;
  std::atomic<uintptr_t> end = 0;
  std::array<char, kNameBytes> name{};
};

std::array<Range, kRanges> g_ranges;
std::atomic<const char*> g_program = "";

void say(std::string_view text) { (void)!::write(STDERR_FILENO, text.data(), text.size()); }

void on_bus_error(int signal, siginfo_t* info, void*) {
  const auto at = reinterpret_cast<uintptr_t>(info->si_addr);
  for (const Range& r : g_ranges) {
    if (r.begin <= kBeingFilled || at < r.begin || at >= r.end) continue;
    say(g_program.load());
    say(": ");
    say(r.name.data());
    say(": cannot be read any more: the file became shorter, or its disk failed, while it was in use; what a run has "
        "sealed is kept: mend it, and start the same command with --resume\n");
    ::_exit(1);
  }
  std::signal(signal, SIG_DFL);  // returning does what was done once more, and that ends the process
}

}  // namespace

void install_bus_handler(const char* program) {
  g_program = program;
  struct sigaction action {};
  action.sa_sigaction = on_bus_error;
  action.sa_flags = SA_SIGINFO;
  ::sigaction(SIGBUS, &action, nullptr);
}

void name_mapped_range(const void* begin, size_t bytes, const std::string& file) {
  for (Range& r : g_ranges) {
    uintptr_t expected = kFree;
    if (!r.begin.compare_exchange_strong(expected, kBeingFilled)) continue;
    const size_t count = std::min(file.size(), kNameBytes - 1);  // of a longer path its end
    std::memcpy(r.name.data(), file.data() + (file.size() - count), count);
    r.name[count] = '\0';
    r.end = reinterpret_cast<uintptr_t>(begin) + bytes;
    r.begin = reinterpret_cast<uintptr_t>(begin);
    return;
  }
}

void forget_mapped_range(const void* begin) {
  for (Range& r : g_ranges)
    if (r.begin == reinterpret_cast<uintptr_t>(begin)) {
      r.begin = kFree;
      return;
    }
}

}  // namespace fewbit
