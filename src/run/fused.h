#pragma once
// Linears together with the op before them (src/run/linear.h has them alone).
#include <span>

#include "kernels/model/gated_act.h"
#include "kernels/products/normed_gemms.h"
#include "src/run/linear.h"

namespace fewbit {

// apply_all() on rms_norm(x), in one launch where the linears have a kernel for it.
//   normed [tokens, in] like x: room for the normed x; what it holds afterwards is not said
void apply_all_normed(Exec&, std::span<const Linear* const>, ConstTensorView x, const RowNorm&, TensorView normed,
                      std::span<const TensorView> ys);
// Whether the norm of many rows is part of their products too, where of few rows alone it would be done for all kinds.
bool take_norm(std::span<const Linear* const>);
// y = gated_act(gate, up) W^T + bias, or y += where `add`: true where the linear's kernel activates too, false where
// nothing was done.
//   gate, up, room [tokens, in]: what `room` holds afterwards is not said
bool apply_gated(Exec&, const Linear&, ConstTensorView gate, ConstTensorView up, ActKind act, TensorView room,
                 TensorView y, bool add);

}  // namespace fewbit
