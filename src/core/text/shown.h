#pragma once
// What comes from a file or from outside of the program, made fit for a terminal.
#include <cstddef>
#include <string>
#include <string_view>

namespace fewbit {

// On one line: control characters (escape sequences, line ends), marks that turn the direction of text, and bytes that
// are no UTF-8 are written as \x1b or \u202e. Cut to about `bytes`, with "..." behind.
std::string shown(std::string_view text, size_t bytes = 200);

// A message of several lines: each of them as above, but with the middle left out where it is very long, and at most
// twenty of them; a last line then counts the others.
std::string shown_message(std::string_view text);

}  // namespace fewbit
