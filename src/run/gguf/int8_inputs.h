#pragma once
// Linears whose inputs are rounded to int8 because LoadOptions::acts says so.
#include "src/run/linear.h"

namespace fewbit {

// Refuses what does not go together with LoadOptions::acts: another device than the CPU, float32, several processes, a
// checkpoint without packed integers, or a packed linear or head that int8 has no product with. Linears whose
// checkpoint rounds their inputs already keep that, floats keep bf16. Error{usage}: the first one that is refused.
void check_acts(const Exec&, const Checkpoint&, const LoadOptions&);

// A GgufLinear of packed integers of up to 8 bits in groups of a multiple of 32, or one a row, without act-order, whose
// inputs are rounded; `why` it is none otherwise.
std::string refuses_int8_inputs(const QuantSpec&, int64_t in, bool act_order);
Linear int8_input_linear(Exec&, const QuantizedLinear&, Tensor bias);

}  // namespace fewbit
