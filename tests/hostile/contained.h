#pragma once
// Readers given what a hostile stranger would give them, each in a process of its own with little memory and time.
#include <functional>
#include <string>
#include <vector>

namespace fewbit::test {

// One input, named after why it is refused.
struct Hostile {
  std::string name, bytes;
  std::string says{};  // words that the error must hold
  bool taken = false;  // may be read as well: odd, but harmless
};

// Gives every input to `read` in a child process, which may take 2 s of the processor and 500 MB (with sanitizers 20 s
// and any memory): it must end in an Error whose message is short, of at most twenty-one lines and without control
// characters, and nothing else may be thrown.
void expect_refused(const std::vector<Hostile>& inputs, const std::function<void(const std::string& bytes)>& read);

// The same of a single input without expectations of its words: either is fine, a result or an Error.
void expect_contained(const std::vector<Hostile>& inputs, const std::function<void(const std::string& bytes)>& read);

// What no JSON reader should take: broken text, other kinds of files, nesting, numbers and sizes beyond all limits.
// `document`: a valid one, an object, that is broken in many ways.
std::vector<Hostile> hostile_json(const std::string& document);

// `unit` again and again, until it has so many bytes.
std::string repeated(const std::string& unit, size_t bytes);

}  // namespace fewbit::test
