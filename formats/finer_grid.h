#pragma once
// A packed linear on another grid that has every one of its values: the same codes, under scales that serve as many
// weights or fewer.
#include "src/core/quantized_linear.h"

namespace fewbit {

// Whether grid `to` has every value of every linear [out, in] on grid `from`, whose groups are consecutive: groups of
// `to` lie inside of those of `from`, the codes mean the same, and the type of the scales holds all of the other's.
// Rounded inputs are left out of it. Scales under a global one hold powers of two only where those lie close together:
// exact_global().
bool has_grid(const QuantSpec& to, const QuantSpec& from, int64_t out, int64_t in);

// The global scale under which E4M3 holds every power of two from `least` to `largest` (both positive) exactly, which
// it does over 17 doublings; 0 where they lie further apart.
double exact_global(float least, float largest);

// `q` on a grid that has_grid(), or, of powers of two to scales under a global one, with exact_global() as `global`.
// Rounded inputs as `to` says; q's own scale of them stays where both are static.
QuantizedLinear on_finer_grid(const QuantizedLinear& q, const QuantSpec& to, double global = 0);

}  // namespace fewbit
