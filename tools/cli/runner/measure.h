#pragma once
// `quantize --measure`: the perplexity of MODEL and of what became of it.
#include "src/quant/output/report.h"
#include "tools/cli/evaluate/evaluate_data.h"

namespace fewbit::cli {

// The built-in evaluation text as MODEL's tokenizer cuts it; before anything is computed, so that a model
// without a tokenizer is refused in time.
ScoredWindows windows_to_measure(const Common&, const Checkpoint& model);

MeasuredPerplexity measure_perplexity(Exec&, const Common&, const ScoredWindows&, const Checkpoint& model,
                                      const std::filesystem::path& out, Progress&);

}  // namespace fewbit::cli
