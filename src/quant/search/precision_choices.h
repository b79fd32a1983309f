#pragma once
// What `auto` may choose for every linear and what each choice weighs, before anything is measured. Internal to
// src/quant/search, but for the refusals.
#include <vector>

#include "src/quant/plan/plan.h"
#include "src/quant/search/budget.h"
#include "src/quant/search/schemes.h"
#include "src/quant/search/sensitivity.h"

namespace fewbit {

struct PrecisionJob {
  Recipe base{};              // the recipe; its chain is "auto"
  std::vector<Rule> rules{};  // the user's: linears they match are theirs, neither chosen nor counted
  std::string engine{};       // that must load every choice; "" = none is asked
  int64_t tp = 1;             // on so many GPUs
  DType dtype = DType::f32;   // compute dtype of the measurement
  uint64_t seed = 0;
  MemoryLimits limits{};  // that the measurement stays within; a GPU's are no more than what is free there
  std::function<void(double)> progress{};
};

// Linears that get one scheme.
struct PrecisionUnit {
  TiedLinears linears{};
  double share = 1;               // of a token's steps that read them: of experts, those that it is sent to
  double weights = 0;             // how many
  std::vector<size_t> allowed{};  // indices of candidates
  std::vector<int64_t> bytes{};   // of each allowed one
};

struct PrecisionChoices {
  std::vector<Candidate> candidates{};
  std::vector<PrecisionUnit> units{};  // in model order
  int64_t budget = 0;                  // bytes of all units, or those of them that a token reads
  bool active = false;                 // the latter
  double counted = 0;                  // weights that the budget is of
};

// Error{usage} for a recipe that says what is to be chosen, where nothing is left to choose, and for a budget below the
// smallest choices; Error{unsupported} for a scheme that the format or the engine does not take for any linear, with
// the reason, and for a format that cannot hold several at once. Nothing is computed.
PrecisionChoices precision_choices(const Checkpoint&, const PrecisionJob&);

// Bytes of a choice as the budget counts them.
int64_t counted_bytes(const PrecisionUnit&, int64_t bytes, bool active);

}  // namespace fewbit
