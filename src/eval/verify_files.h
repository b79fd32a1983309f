#pragma once
// The half of verify() that runs nothing: files, tensors and the config against what was written down of them.
#include "src/eval/verify.h"

namespace fewbit {

// Adds what it finds to `result`. Error{checkpoint} where `dir` has no report of `quantize` or `convert`.
void verify_files(const std::filesystem::path& dir, VerifyResult& result, const VerifyProgress& progress);

}  // namespace fewbit
