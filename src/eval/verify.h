#pragma once
// Verify: is a written checkpoint what its report says? Reopens every file, unpacks every linear, compares
// the hashes of the neutral form with quant_report.json, and runs the model packed and dequantized.
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "kernels/exec/exec.h"

namespace fewbit {

struct VerifyProblem {
  std::string linear;  // "" for the checkpoint as a whole
  std::string what;
};
struct VerifyResult {
  std::vector<VerifyProblem> problems;
  int64_t linears = 0;  // unpacked and compared
  // ||packed - reference|| / ||reference|| of the logits of a fixed token sequence; with a mixture of experts
  // that of the median token.
  double logits_error = 0;
  bool ok() const { return problems.empty(); }
};

// Error{…} only where the checkpoint cannot be opened at all; everything else is a problem in the result.
VerifyResult verify(Exec&, const std::filesystem::path& dir, const std::function<void(double)>& progress = {});

}  // namespace fewbit
