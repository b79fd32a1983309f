#pragma once
// The memory estimate of a plan: what one block needs on the device at its peak. Internal to src/quant/plan.
#include "src/quant/plan/plan.h"

namespace fewbit {

// Bytes on the device of the calibration (on_gpu or not): both streams, the widest pair of live activations, the Gram
// matrices with their factors, the f32 working copies of the largest linear, and what transforms and learned rounding
// need besides.
int64_t peak_estimate(const Checkpoint&, const QuantPlan&, const PlanOptions&);

}  // namespace fewbit
