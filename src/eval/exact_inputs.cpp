#include "src/eval/exact_inputs.h"

#include <algorithm>
#include <filesystem>

#include "src/model/checkpoint.h"

namespace fewbit {
namespace {

bool rounds(const Checkpoint& c, ActQuant how) {
  const auto& linears = c.quantization.linears;
  return std::any_of(linears.begin(), linears.end(), [&](const auto& l) { return l.second.spec.activations == how; });
}

}  // namespace

LoadOptions with_exact_inputs(LoadOptions load, const Checkpoint& c) {
  std::error_code ignored;
  const bool published = c.format == "fp8" && !std::filesystem::exists(c.dir / "quant_report.json", ignored);
  if (load.dtype == DType::f32 && load.weights == Weights::packed && load.acts == ActsType::bf16 && published &&
      rounds(c, ActQuant::token))
    load.weights = Weights::values;
  return load;
}

std::string exact_inputs_line(const LoadOptions& load) {
  return load.weights == Weights::values
             ? "inputs stay unrounded: in float32 a published FP8 checkpoint is its codes times their scales; --dtype "
               "bf16 rounds inputs as engines do"
             : "";
}

std::string inputs_word(const LoadOptions& load, const Checkpoint& c) {
  const bool any = rounds(c, ActQuant::token) || rounds(c, ActQuant::tensor) || load.acts == ActsType::int8;
  return load.weights == Weights::values || !any ? "exact" : "rounded";
}

}  // namespace fewbit
