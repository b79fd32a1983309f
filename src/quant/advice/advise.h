#pragma once
// Which recipe for which GPU and engine: candidates under the plan's figures, ranked. Nothing is computed.
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "src/model/checkpoint.h"
#include "src/run/plan/gpus.h"

namespace fewbit {

enum class AdviceGoal : uint8_t { memory, latency, quality };
AdviceGoal advice_goal_from(std::string_view name);  // Error{usage}
std::string_view name_of(AdviceGoal);

struct AdviceJob {
  const GpuModel* gpu = nullptr;
  std::string engine{};  // one of engines(), or "fewbit": its own runner
  AdviceGoal goal = AdviceGoal::latency;
  int64_t context = 8192;  // positions of one sequence, for the cache in bf16
};

struct Advice {
  std::string recipe{};  // of `quantize`; "" = the model as it is
  std::string note{};    // what this GPU makes of it
  double bits_per_weight = 0;
  int64_t checkpoint_bytes = 0;  // that the plan says
  int64_t cache_bytes = 0;       // keys and values of `context` positions in bf16
  bool fits = false;             // with a twelfth of the GPU's memory left for the engine's own
  double step_ms = 0;            // reading every weight of a step and the cache once: no engine is faster at batch 1
  double lab_gap = 0;            // perplexity over bf16's less 1, in %, measured on a model of 9.4 M parameters
};
struct AdviceTable {
  std::vector<Advice> ranked{};        // those that fit first, the best first
  std::vector<std::string> refused{};  // "RECIPE: reason", of candidates that the engine or the model does not take
};

// Error{unsupported} where MODEL is quantized already.
AdviceTable advise(const Checkpoint&, const AdviceJob&);

}  // namespace fewbit
