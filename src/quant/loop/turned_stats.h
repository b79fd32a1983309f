#pragma once
// The statistics of an input in the basis of the codes that it meets (QuantSpec::turn).
#include "src/calib/input_stats.h"
#include "src/quant/method.h"

namespace fewbit {

// H M H of the sums M, with H the block-diagonal matrix of Sylvester's orthonormal Hadamard matrices of `run` rows, and
// the sample's rows times H. In host memory and f32 on the way: a linear in a block has such an input, and a device of
// its own kernels would gain little.
InputStats turned_stats(Exec&, const InputStats&, int64_t run);

}  // namespace fewbit
