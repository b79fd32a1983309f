#pragma once
// Errors: a user's mistake is an Error that names file, tensor or key, what was expected and what was found;
// a programmer's mistake stops the process at the line (FEWBIT_ASSERT). Libraries throw, tools print.
#include <source_location>
#include <stdexcept>
#include <string>
#include <string_view>

namespace fewbit {

enum class ErrorKind {
  usage,        // a flag or a name is wrong                                  exit 2
  checkpoint,   // a file says something untrue or incomplete                 exit 1
  unsupported,  // valid, but we do not implement it                          exit 1
  io,           // the system refused a read or a write                       exit 1
  memory,       // host or device memory                                      exit 1
  device,       // CUDA or its libraries                                      exit 1
  numeric,      // the numbers misbehave and no permitted fallback is left    exit 1
  stopped,      // stopped on request; the run can be resumed                 exit 75
};

class Error : public std::runtime_error {
 public:
  Error(ErrorKind kind, const std::string& what) : std::runtime_error(what), kind_(kind) {}
  ErrorKind kind() const { return kind_; }
  int exit_code() const { return kind_ == ErrorKind::usage ? 2 : kind_ == ErrorKind::stopped ? 75 : 1; }

 private:
  ErrorKind kind_;
};

// Throws Error. The message is one line and carries the values, not the text of the condition.
[[noreturn]] void fail(ErrorKind kind, const std::string& message);

// Prints "bug: …" with the place and aborts. Never reachable from user input.
[[noreturn]] void bug(std::string_view message, std::source_location where = std::source_location::current());

// Checked in every build; cost is per call, not per element.
#define FEWBIT_ASSERT(cond)                                 \
  do {                                                      \
    if (!(cond)) ::fewbit::bug("broken invariant: " #cond); \
  } while (0)

}  // namespace fewbit
