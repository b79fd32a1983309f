#include "tests/hostile/contained.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <new>

#include "src/core/error.h"
#include "src/core/inline_parallel.h"

namespace fewbit::test {
namespace {

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
// Instrumented readers take up to ten times as long. Memory has no limit: the sanitizers map terabytes.
constexpr int kSeconds = 20;  // of the processor
constexpr const char* kAllowed = "20 s are allowed";
#else
constexpr int kSeconds = 2;             // of the processor
constexpr int64_t kMemory = 500 << 20;  // bytes beyond what the test itself has mapped
constexpr const char* kAllowed = "2 s and 500 MB are allowed";

int64_t mapped_bytes() {
  int64_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  return pages * ::sysconf(_SC_PAGESIZE);
}
#endif
constexpr size_t kLongestMessage = 100'000;

// How a child ended that no signal ended.
enum Ending : int { kRead = 0, kRefused = 1, kOther = 90 };

struct Outcome {
  int ending = kOther;
  int signal = 0;
  std::string message{};
};

void limit(int what, rlim_t value) {
  const rlimit l{value, value};
  ::setrlimit(static_cast<__rlimit_resource>(what), &l);
}

void limit_everything() {
  limit(RLIMIT_CORE, 0);
  limit(RLIMIT_CPU, kSeconds);
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
  limit(RLIMIT_AS, static_cast<rlim_t>(mapped_bytes() + kMemory));
#endif
}

int run_child(int out, const std::string& bytes, const std::function<void(const std::string&)>& read) {
  limit_everything();
  const InlineParallel here;  // the parent's threads are not in this process
  std::string message;
  int ending = kRead;
  try {
    read(bytes);
  } catch (const Error& e) {
    message = e.what();
    ending = e.exit_code() == 1 || e.exit_code() == 2 ? kRefused : kOther;
  } catch (const std::exception& e) {
    message = std::string("not an Error: ") + e.what();
    ending = kOther;
  }
  message.resize(std::min(message.size(), kLongestMessage));
  for (size_t done = 0; done < message.size();) {
    const ssize_t n = ::write(out, message.data() + done, message.size() - done);
    if (n <= 0) break;
    done += static_cast<size_t>(n);
  }
  return ending;
}

Outcome contained(const std::string& bytes, const std::function<void(const std::string&)>& read) {
  int ends[2];
  if (::pipe(ends) != 0) return {kOther, 0, "no pipe"};
  const pid_t child = ::fork();
  if (child == 0) {
    ::close(ends[0]);
    ::_exit(run_child(ends[1], bytes, read));  // without what the parent would do at its end
  }
  ::close(ends[1]);
  Outcome o;
  char buffer[4096];
  for (ssize_t n; (n = ::read(ends[0], buffer, sizeof buffer)) > 0;) o.message.append(buffer, static_cast<size_t>(n));
  ::close(ends[0]);
  int status = 0;
  ::waitpid(child, &status, 0);
  if (WIFEXITED(status)) o.ending = WEXITSTATUS(status);
  if (WIFSIGNALED(status)) o.signal = WTERMSIG(status);
  return o;
}

// "" where the message is fit for a terminal.
std::string fault_of(const std::string& message) {
  if (message.empty()) return "no message";
  if (std::count(message.begin(), message.end(), '\n') > 20) return "more than twenty-one lines";
  if (message.size() >= 21 * 4096) return "too long";
  for (const char c : message)
    if ((static_cast<unsigned char>(c) < 0x20 && c != '\n') || c == 0x7f) return "a control character";
  return "";
}

void expect(const Hostile& h, bool any, const std::function<void(const std::string&)>& read) {
  const Outcome o = contained(h.bytes, read);
  ASSERT_EQ(o.signal, 0) << h.name << ": " << strsignal(o.signal) << " (" << kAllowed << ") " << o.message;
  if (o.ending == kRead) {
    EXPECT_TRUE(any || h.taken) << h.name << ": was taken";
    return;
  }
  ASSERT_EQ(o.ending, kRefused) << h.name << ": " << o.message;
  EXPECT_EQ(fault_of(o.message), "") << h.name << ": " << o.message;
  EXPECT_NE(o.message.find(h.says), std::string::npos) << h.name << ": expected \"" << h.says << "\": " << o.message;
}

}  // namespace

void expect_refused(const std::vector<Hostile>& inputs, const std::function<void(const std::string&)>& read) {
  for (const Hostile& h : inputs) expect(h, false, read);
}

void expect_contained(const std::vector<Hostile>& inputs, const std::function<void(const std::string&)>& read) {
  for (const Hostile& h : inputs) expect(h, true, read);
}

std::string repeated(const std::string& unit, size_t bytes) {
  std::string s;
  s.reserve(bytes + unit.size());
  while (s.size() < bytes) s += unit;
  return s;
}

}  // namespace fewbit::test
