#pragma once
// The calibration text as flags: what `quantize` and `evaluate sweep` have in common.
#include <string>
#include <vector>

#include "src/text/corpus.h"
#include "tools/cli/options.h"

namespace fewbit::cli {

struct CalibrationArgs {
  std::vector<std::string> calib = {"builtin"};
  int64_t samples = 128, seq_len = 2048;
  uint64_t seed = 0;
};
void add_calibration_arguments(CLI::App& app, CalibrationArgs& a);

// --seq-len, at most the model's positions.
int64_t calibration_length(const CalibrationArgs& a, const ModelSpec& spec);
// Tokenizes and draws; `note` says where there is less text than asked for.
Windows draw_windows(Exec& ex, const CalibrationArgs& a, const Checkpoint& c, DType dtype, Progress& progress,
                     std::string* note);

}  // namespace fewbit::cli
