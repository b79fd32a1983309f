#pragma once
// Which linears a rule means. Internal to src/quant.
#include "src/core/strings.h"
#include "src/quant/plan/plan.h"

namespace fewbit {

// By its full name, or by that in its block ("self_attn.q_proj"). For linears of blocks.
inline bool means(const Rule& rule, const ModelSpec& spec, const NamedLinear& l) {
  return glob_match(rule.glob, l.name) || glob_match(rule.glob, l.name.substr(spec.prefix(l.layer).size()));
}

}  // namespace fewbit
