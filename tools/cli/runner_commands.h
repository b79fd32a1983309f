#pragma once
// The commands of `runner` that have a file of their own.
#include <CLI/CLI.hpp>

namespace fewbit::cli {

void add_bench_command(CLI::App& app);

}  // namespace fewbit::cli
