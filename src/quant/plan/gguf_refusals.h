#pragma once
// What a .gguf file cannot say of a plan: refusals that are known before any work. Internal to src/quant.
#include "src/quant/plan/plan.h"

namespace fewbit {

// The blocks that the linear is written in: those of an encoder, or those that hold the codes of its packing.
const gguf::BlockType& gguf_type_of(const PlannedLinear&);

// Of the model, of its tokenizer and of the plan.
std::vector<Refusal> gguf_refusals(const Checkpoint&, const QuantPlan&);

}  // namespace fewbit
