#pragma once
// Linears that are low-bit in the model already: whether a quantization may start from them, and where their codes go
// through unchanged. Internal to src/quant/plan.
#include <string>

#include "src/quant/plan/plan.h"

namespace fewbit {

// Why a quantization cannot start from the packed linear; "" = it can, from the values of its codes.
std::string refuses_source(const Checkpoint&, const NamedLinear&);

// The packed linear as it came, inputs too, in the packings of `format`. False, with the reason, where it has no place
// there.
bool pass_as_it_came(const Checkpoint&, const CheckpointFormat& format, PlannedLinear&, std::string* why_not);

// The same where the grid of p.recipe has all of the packed linear's values. False, and nothing is changed, where it
// has not.
bool pass_on_grid(const Checkpoint&, const CheckpointFormat& format, PlannedLinear&);

// MXFP4 that recipes want as NVFP4 goes through where the scales of all linears that engines run as one fit one global
// scale: E4M3 holds powers of two over 17 doublings. Reads the scales, and sets global_scale.
void pass_powers_of_two(const Checkpoint&, QuantPlan&);

// Packed matrices that travel byte for byte: those outside the op list, and ends that no rule names.
std::vector<NamedLinear> carried(const Checkpoint&, const QuantPlan&);
// The config of `plan` must know their packings.
void plan_others(const Checkpoint&, QuantPlan&);

// A format of stacked experts takes all experts of a family that has such stacks, and nothing besides.
void refuse_unstacked(const Checkpoint&, QuantPlan&);

// A rule of --keep-source-grid that finds no packed linear is a mistake: Error{usage}.
void require_sources(const Checkpoint&, const std::vector<Rule>&);

}  // namespace fewbit
