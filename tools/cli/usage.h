#pragma once
// What a wrong command line is answered with, in one line.
#include <CLI/CLI.hpp>
#include <string>

namespace fewbit::cli {

// The flag or command, what was expected, what was found, the nearest that exists, and which --help has the rest.
std::string usage_line(const CLI::App& app, const CLI::ParseError&);

// Of an option: a whole number from `least` to `most`, or any number. The message names what was found (at_least() of
// options.h likewise).
CLI::Validator in_range(int64_t least, int64_t most);
CLI::Validator number_in(double least, double most);
// A number above 0, of what `unit` says: "nats a token".
CLI::Validator above_zero(const char* unit);

}  // namespace fewbit::cli
