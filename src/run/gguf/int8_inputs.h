#pragma once
// Packed integers in the order of blocks of GGUF, and linears whose inputs are rounded to int8 because
// LoadOptions::acts says so.
#include "src/run/linear.h"

namespace fewbit {

// Refuses what does not go together with LoadOptions::acts: another device than the CPU, float32, several processes, a
// checkpoint without packed integers, or a packed linear or head that int8 has no product with. Linears whose
// checkpoint rounds their inputs already keep that, floats keep bf16. Error{usage}: the first one that is refused.
void check_acts(const Exec&, const Checkpoint&, const LoadOptions&);

// Why packed integers are no GgufLinear whose inputs are rounded; "" = they can be: of up to 8 bits in groups of a
// multiple of 32, or one a row, without act-order.
std::string refuses_int8_inputs(const QuantSpec&, int64_t in, bool act_order);
// Whether packed integers lie in strips, as blocks of GGUF do: where their inputs are rounded, and on every CPU with
// AVX2 but those with AMX, since loops over strips are up to five times as fast as those over rows of codes: of bf16 a
// register holds pairs of columns of sixteen outputs, and their sums need no shuffles. AMX has tiles.
bool lies_in_strips(const Exec&, const QuantizedLinear&, const LoadOptions&);
Linear strip_linear(Exec&, const QuantizedLinear&, Tensor bias, ActsType);

}  // namespace fewbit
