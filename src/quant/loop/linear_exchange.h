#pragma once
// Coded linears on their way from the rank that coded them to the others.
#include <span>

#include "src/core/quantized_linear.h"
#include "src/quant/method.h"
#include "src/quant/output/report.h"
#include "src/ranks/ranks.h"

namespace fewbit {

// A linear as it goes: its spec and place in the report are known to all ranks.
struct LinearOnItsWay {
  QuantizedLinear* linear = nullptr;
  LinearRecord* record = nullptr;
  DeviceCodes* there = nullptr;
};

// Collective. The root's linears, everywhere, as many on every rank: of codes what is in its host memory, and what it
// has on its device on everybody's. All that lies in host memory is one message: a mixture has hundreds of linears a
// block, and every message is a wait of all ranks.
void linears_from(Exec&, const Ranks&, int root, std::span<const LinearOnItsWay>);

}  // namespace fewbit
