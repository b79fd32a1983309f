#include "src/core/error.h"

#include <cstdio>
#include <cstdlib>

namespace fewbit {

void fail(ErrorKind kind, const std::string& message) { throw Error(kind, message); }

void bug(std::string_view message, std::source_location where) {
  std::fprintf(stderr, "fewbit: bug at %s:%u in %s: %.*s; please report it\n", where.file_name(),
               static_cast<unsigned>(where.line()), where.function_name(), static_cast<int>(message.size()),
               message.data());
  std::abort();
}

}  // namespace fewbit
