#pragma once
// Verify: is a written checkpoint what it was when it was written? Compares every file with SHA256SUMS, every tensor
// and companion with the digests of quant_report.json and the config with what the report says of it; then unpacks
// every linear, compares the hashes of the neutral form, and runs the model packed and dequantized. It finds accidents:
// whoever can write the folder can write its digests too, so that tampering takes a signature to be found.
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "kernels/exec/exec.h"

namespace fewbit {

// What is wrong, and with which of file, tensor and linear; "" where one does not apply.
struct VerifyProblem {
  std::string file{}, tensor{}, linear{};
  std::string what{};
  std::string where() const;  // the narrowest that is known; "" for the checkpoint as a whole
};

struct VerifyResult {
  std::vector<VerifyProblem> problems{};
  std::vector<VerifyProblem> warnings{};  // of what does not belong to the model: a README that was edited, other files
  std::vector<std::string> unchecked{};   // what an older folder, or one without its digests, says nothing of
  std::string origin{};                   // how it was made, and from what (origin.h); "" where its report does not say
  int64_t files = 0, tensors = 0;         // that were compared with their digests
  int64_t linears = 0;                    // unpacked and compared
  // ||packed - reference|| / ||reference|| of the logits of a fixed token sequence; with a mixture of experts
  // that of the median token.
  double logits_error = 0;
  bool ok() const { return problems.empty(); }
};

using VerifyProgress = std::function<void(const std::string& phase, double fraction)>;

// Error{…} only where the checkpoint cannot be opened and its digests do not say why; everything else is a problem in
// the result. What is damaged is not run.
VerifyResult verify(Exec&, const std::filesystem::path& dir, const VerifyProgress& progress = {});

}  // namespace fewbit
