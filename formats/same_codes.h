#pragma once
// Codes of one checkpoint format in the packings of another, without a change of any code or value.
#include <string>

#include "formats/checkpoint_format.h"

namespace fewbit {

// The packing and the grid under which `format` holds exactly the codes and values of `q`; a null packing and
// the reason in `why_not` where it cannot. q.spec is tried as it is, then grids that say the same in other
// words: scales of another type that holds every one of them, one group per row for a group of all inputs
// (and back), symmetric where every zero point is the middle one. `q` must be sound (check()).
LinearFormat same_codes(const CheckpointFormat& format, const QuantizedLinear& q, std::string* why_not);

// `q` on a grid that same_codes() found for it.
QuantizedLinear on_grid(QuantizedLinear q, const QuantSpec& spec);

}  // namespace fewbit
