#pragma once
// The commands of `convert` that have a file of their own.
#include <CLI/CLI.hpp>

namespace fewbit::cli {

void add_convert_to_command(CLI::App& app);
void add_convert_diff_command(CLI::App& app);

}  // namespace fewbit::cli
