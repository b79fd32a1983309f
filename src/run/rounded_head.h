#pragma once
// A float head that is rounded while it is loaded, on the device that will run it.
#include "src/run/linear.h"

namespace fewbit {

// Why the head `l` of this checkpoint cannot be rounded to o.head; "" = it can, or need not.
std::string refuses_head(const Exec&, const Checkpoint&, const NamedLinear& l, const LoadOptions& o);
// The head (or the embedding that it is tied to) rounded to nearest with searched scales, o.head fp8 or int4;
// refuses_head() said nothing.
Linear rounded_head(Exec&, const Checkpoint&, const NamedLinear& l, const LoadOptions& o);

}  // namespace fewbit
