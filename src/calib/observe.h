#pragma once
// Statistics of one input, as the linears behind it will see it.
#include "src/calib/input_stats.h"

namespace fewbit {

inline constexpr int64_t kSampleTokens = 4096;

// Sums over the tokens of x [tokens, in] f32 | bf16, rounded as `rounding` says, and against x_full (the unquantized
// stream, never rounded; data == nullptr: no cross sums). A static scale comes from the largest |x|, or from the asked
// percentile of it over at most kSampleTokens tokens, evenly spaced. No tokens: zeros.
InputStats observe_input(Exec&, ConstTensorView x, ConstTensorView x_full, const InputRounding& rounding);

// At most `count` rows of x at even distances.
Tensor spread_rows(Exec&, ConstTensorView x, int64_t count);

}  // namespace fewbit
