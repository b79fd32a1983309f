#pragma once
// The ladder of gptq.cpp for other column loops than its own: damping grows until the Gram matrix can be factored and
// the loop's result is finite.
#include <functional>
#include <string>

#include "src/quant/method.h"

namespace fewbit {

// What a rung hands to a column loop, on the job's device, in the order of the checkpoint.
struct LadderStep {
  ConstTensorView target{};  // [out, in] f32, what the codes should reproduce: the weight, shifted where that is wanted
  ConstTensorView r{};       // [in, in]  f32, the factor
  ConstTensorView diag{};    // [in]      f32, the diagonal of the Gram matrix, 1 at dead inputs
  ConstTensorView h{};       // [in, in]  f32, the Gram matrix with that diagonal, damped
};
struct Ladder {
  // The loop; false where its result is not finite.
  std::function<bool(const LadderStep&)> walk;
  // Plain rounding by importance ([in] f32, or absent), the last two rungs.
  std::function<void(ConstTensorView importance)> round;
  // The values that either left, and those of the published rule without a search: f32 [out, in] on the device.
  std::function<Tensor()> values, plain;
};

// The rung that held and the four losses; `linear` is the caller's to fill. Error{numeric} as gptq has it.
MethodResult climb_ladder(Exec&, const LinearJob&, const Ladder&);

}  // namespace fewbit
