#pragma once
// Waves: how many experts of a mixture a calibration has in memory at once.
#include <algorithm>
#include <vector>

#include "src/model/model_spec.h"

namespace fewbit {

struct MemoryPlan;
struct QuantPlan;

// Experts whose statistics are held side by side; `weights`: and no other experts' weights.
struct Waves {
  int at_once = 1;
  bool weights = false;
  int lanes = 1;  // experts that are solved side by side
  int experts(const Moe& m) const { return std::min(at_once, m.experts); }
};
// From what is fastest to what takes the least memory: many experts at a time, with the weights of all or, where that
// does not do, their own. Weights that transforms rewrite are there as long as the block.
std::vector<Waves> waves_to_try(const ModelSpec&, const QuantPlan&);
Waves waves_of(const MemoryPlan&);  // that it has settled on

// Weights of the linears of ops [begin, end), but of mixtures whose experts come in waves.
int64_t weights_of(const std::vector<BlockOp>& ops, size_t begin, size_t end, const Waves&);

// Weights of an expert: of what multiplies its input, and of down.
inline int64_t wide_weights(const Moe& m) { return m.up.out_features * m.hidden * (m.gated() ? 2 : 1); }
inline int64_t down_weights(const Moe& m) { return m.down.out_features * m.down.in_features; }

}  // namespace fewbit
