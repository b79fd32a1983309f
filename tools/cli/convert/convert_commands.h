#pragma once
// The commands of `convert` that have a file of their own.
#include <CLI/CLI.hpp>
#include <filesystem>
#include <string>

#include "tools/cli/options.h"

namespace fewbit::cli {

// Of a model folder that is refused because of `why`: its config, its tensors, the nearest family and what differs.
// Says nothing where the folder has no config that could be read.
void inspect_refused(const Common&, const std::filesystem::path& dir, const std::string& why);

void add_convert_to_command(CLI::App& app);
void add_convert_diff_command(CLI::App& app);

}  // namespace fewbit::cli
