#pragma once
// Which values of a tensor are no numbers to compute with: NaN, and infinities where the type has them.
#include <cstdint>

#include "src/core/dtype.h"

namespace fewbit {

// Whether the type can hold what is not finite; integers and packed codes cannot.
bool can_be_infinite(DType);

// The first of `count` elements at `data` (at any address) that is NaN or infinite; -1 where all are finite.
int64_t first_not_finite(DType, const void* data, int64_t count);

}  // namespace fewbit
