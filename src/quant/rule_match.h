#pragma once
// Which linears a rule means. Internal to src/quant.
#include "src/core/strings.h"
#include "src/quant/plan/plan.h"

namespace fewbit {

// By its full name, or by that in its block ("self_attn.q_proj"). For linears of blocks.
inline bool means(const Rule& rule, const ModelSpec& spec, const NamedLinear& l) {
  return glob_match(rule.glob, l.name) || glob_match(rule.glob, l.name.substr(spec.prefix(l.layer).size()));
}

// Whether the rule means a linear of the layer that predicts further tokens (mtp_linears): by a glob that begins with
// the name of that layer, "mtp." or "model.layers.N."; one for all linears is not meant for it.
bool means_mtp(const Rule&, const ModelSpec&, const NamedLinear&);

// A rule of --set or --keep that means nothing is a mistake: Error{usage} with the names that are near. Ends are meant
// by exactly their name; --keep may also name a matrix that no recipe touches.
void require_matches(const Checkpoint&, const std::vector<Rule>&);

}  // namespace fewbit
