#include "src/core/error.h"

#include <cstdio>
#include <cstdlib>

#include "src/core/text/shown.h"

namespace fewbit {

// Messages quote files that strangers wrote: nothing of them may act on a terminal or fill it.
void fail(ErrorKind kind, const std::string& message) { throw Error(kind, shown_message(message)); }

void bug(std::string_view message, std::source_location where) {
  std::fprintf(stderr, "fewbit: bug at %s:%u in %s: %.*s; please report it\n", where.file_name(),
               static_cast<unsigned>(where.line()), where.function_name(), static_cast<int>(message.size()),
               message.data());
  std::abort();
}

}  // namespace fewbit
