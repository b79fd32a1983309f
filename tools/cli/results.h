#pragma once
// Where results go: standard output and files that the user names. One that cannot be written is an error, found before
// the work where that is possible.
#include <CLI/CLI.hpp>
#include <string>

namespace fewbit::cli {

// Of an option that names a file to write: opens it, and leaves what is there as it was. Of several ranks rank 0 looks.
CLI::Validator writable_file();

// The file appears, or changes, by one rename; what is no regular file (/dev/…, a pipe) is written to directly.
// Error{io} with the system's reason.
void write_result(const std::string& path, const std::string& text);

// The reader of standard output has gone (`… | head`): nobody is there to be told.
struct OutputClosed {};

// To standard output, behind what was printed. OutputClosed; Error{io} with the system's reason.
void print_result(const std::string& text);

// Everything printed so far is written. OutputClosed; Error{io} where it could not be.
void flush_output();

}  // namespace fewbit::cli
