#pragma once
// Linears together with the op before them (src/run/linear.h has them alone).
#include <span>

#include "kernels/normed_gemms.h"
#include "src/run/linear.h"

namespace fewbit {

// apply_all() on rms_norm(x), in one launch where the linears have a kernel for it.
//   normed [tokens, in] like x: room for the normed x; what it holds afterwards is not said
void apply_all_normed(Exec&, std::span<const Linear* const>, ConstTensorView x, const RowNorm&, TensorView normed,
                      std::span<const TensorView> ys);

}  // namespace fewbit
