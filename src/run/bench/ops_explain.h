#pragma once
// Which CUDA kernel each op of a model takes for which rows, and why: the table of kernels/choice/kernel_choice.h asked
// for the shapes of a model. Needs no GPU.
#include "kernels/choice/kernel_choice.h"
#include "src/run/bench/ops_bench.h"

namespace fewbit {

// Rows [first, last] of one op that take the same rule. For attention the rows are new tokens of a sequence.
struct ExplainedRows {
  std::string model{}, op{};
  std::string type{};       // of weights or cache, as in OpRow
  int64_t in = 0, out = 0;  // of a product
  int64_t first = 0, last = 0;
  const KernelRule* rule = nullptr;
};

inline constexpr int64_t kMostExplainedRows = 8192;

// All types of every product of the models, and their attention, for 1 to kMostExplainedRows rows.
std::vector<ExplainedRows> explain_ops(const std::vector<OpsModel>& models, const GpuTraits& gpu);

}  // namespace fewbit
