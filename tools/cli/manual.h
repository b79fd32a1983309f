#pragma once
#include <CLI/CLI.hpp>
#include <string>

namespace fewbit::cli {

// The man page of a program, in troff.
std::string manual_page(const CLI::App& app, const std::string& program, const std::string& version);

}  // namespace fewbit::cli
