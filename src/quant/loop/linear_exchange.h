#pragma once
// Quantized linears on their way from the rank that made them to all others.
#include <optional>

#include "src/core/quantized_linear.h"
#include "src/quant/method.h"
#include "src/quant/output/report.h"
#include "src/ranks/ranks.h"

namespace fewbit {

// Collective. The root's codes and record, everywhere, of codes what is in its host memory; the spec is known to all.
void linear_from(const Ranks&, int root, QuantizedLinear& linear, LinearRecord& record);
// Collective. What the root has on its device, on everybody's.
void codes_from(Exec&, const Ranks&, int root, DeviceCodes&);

}  // namespace fewbit
