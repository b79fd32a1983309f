#pragma once
// The plan of the ends: embedding and head, which are quantized only where a rule names them, and cannot take all of a
// recipe. Internal to src/quant/plan.
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "src/quant/plan/plan.h"

namespace fewbit {

inline bool is_end(const NamedLinear& l) { return l.layer == kOutsideBlocks; }

// The recipe of the rule that has exactly the end's name, which no pattern stands for: a glob for all linears is not
// meant for the ends; without one what was chosen for it, or that of the run where it is a mix of GGUF's types. Nothing
// where the end stays as it is.
std::optional<Recipe> recipe_for_end(const NamedLinear&, const PlanOptions&);

// A tied model has one matrix for both ends, and its readers expect one: a rule for its head is refused.
void refuse_tied_head(const ModelSpec&, const PlanOptions&, QuantPlan&);

// Takes out of the recipe what an end cannot do. An embedding has no inputs to weigh, so that plain rounding with
// searched scales is all there is; a head that the same matrix serves shares it.
void adapt_to_end(const Checkpoint&, const CheckpointFormat&, PlannedLinear&);

// The linears of the layer that predicts further tokens (src/model/mtp.h) that a rule names, with their recipes. They
// stand outside the blocks, as the ends do.
std::vector<std::pair<NamedLinear, Recipe>> wanted_of_mtp(const Checkpoint&, const PlanOptions&);
inline bool is_mtp(const ModelSpec& spec, const NamedLinear& l) {
  return is_end(l) && l.name + ".weight" != spec.embed && l.name + ".weight" != spec.lm_head;
}
// Takes transforms out of its recipe; why it cannot be had, "" = it can. Calibration never runs that layer, so that
// only methods without statistics can.
std::string refuses_mtp(const Checkpoint&, const CheckpointFormat&, PlannedLinear&);

}  // namespace fewbit
