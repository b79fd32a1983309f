#pragma once
#include <CLI/CLI.hpp>

namespace fewbit::cli {

// `quantize advise MODEL --gpu NAME`.
void add_advise_command(CLI::App& app);

}  // namespace fewbit::cli
