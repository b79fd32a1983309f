#pragma once
// `quantize status OUT`: where a run stands, asked from another terminal.
#include "tools/cli/options.h"

namespace fewbit::cli {

void add_status_command(CLI::App& app);

}  // namespace fewbit::cli
