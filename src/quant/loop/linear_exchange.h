#pragma once
// Quantized linears on their way from the rank that made them to all others.
#include <optional>

#include "src/core/quantized_linear.h"
#include "src/quant/output/report.h"
#include "src/ranks/ranks.h"

namespace fewbit {

// Collective. The root's codes and record, everywhere; the spec is known to all.
void linear_from(const Ranks&, int root, QuantizedLinear& linear, LinearRecord& record);

}  // namespace fewbit
