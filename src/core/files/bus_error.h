#pragma once
// SIGBUS: a mapped file became shorter, or its disk does not give its pages back. The program cannot go on; it says of
// which file, and ends.
#include <cstddef>
#include <string>

namespace fewbit {

// From here on SIGBUS in a range that is named ends the process with exit code 1 and one line; elsewhere as before.
void install_bus_handler(const char* program);

// Names a mapped range for that line, until it is forgotten. Beyond some thousand ranges at once they go unnamed.
void name_mapped_range(const void* begin, size_t bytes, const std::string& file);
void forget_mapped_range(const void* begin);

}  // namespace fewbit
