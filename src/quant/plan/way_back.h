#pragma once
// What a plan asks of the gradients of a model's blocks: learned rounding, and the curvature of outputs.
#include <functional>
#include <string>

#include "src/quant/plan/plan.h"

namespace fewbit {

// Of a linear that will be packed. A block that has no way back learns no rounding, which its note says; a model that
// has none weighs no outputs, which `refuse` is told. Embedding and head stand outside of the walk: theirs count alike.
void ask_for_the_way_back(const ModelSpec&, PlannedLinear&, const std::function<void(std::string)>& refuse);

// Tokens whose gradients are looked at, at most. On a small model 131,072 took a tenth more off the KL than a quarter
// of them, and a sixteenth of them two thirds of what that quarter took; the walk takes as many times as long.
inline constexpr int64_t kCurvatureTokens = 32768, kCurvatureTokensOfBest = 131072;
int64_t walk_tokens(const QuantPlan&);

// Learned rounding is what can do with less time: Error{usage} where there is a limit and nothing learns, which would
// be a promise that nothing keeps.
void bound_learning(const ModelSpec&, const PlanOptions&, QuantPlan&);

}  // namespace fewbit
