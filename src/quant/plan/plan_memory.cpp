#include "src/quant/plan/plan_memory.h"

#include <algorithm>
#include <map>

#include "src/quant/loop/block_transforms.h"
#include "src/quant/loop/learned_rounding.h"
#include "src/quant/plan/plan_ends.h"

namespace fewbit {
namespace {

// What transforms need besides: the block in f32, a copy of the states, a Gram matrix and a sample for every absorber.
int64_t transform_bytes(const Checkpoint& c, const QuantPlan& plan, const PlanOptions& o, int64_t block) {
  if (plan.transforms.empty()) return 0;
  int64_t grams = 0;
  for (const auto& ops : c.spec.kinds) {
    int64_t sum = 0;
    for (const Absorber& a : absorbers_of(ops)) {
      const int64_t in = a.features * a.repeat;
      sum += in * in * 4 + std::min(kTransformSample, o.tokens) * in * bytes_of(o.dtype);
    }
    grams = std::max(grams, sum);
  }
  return block * 4 + o.tokens * bytes_of(o.dtype) * c.spec.hidden + grams;
}

// What learned rounding needs besides, for the layer that needs most.
int64_t learning_bytes(const Checkpoint& c, const QuantPlan& plan, const PlanOptions& o) {
  int64_t most = 0;
  std::map<int64_t, int64_t> weights;
  for (const PlannedLinear& p : plan.linears)
    if (!is_end(p.linear)) weights[p.linear.layer] += p.linear.out * p.linear.in;
  for (const auto& [layer, n] : weights)
    if (learns_rounding(plan, c.spec, layer) && o.seq_len > 0)
      most = std::max(most, learning_bytes(c.spec, c.spec.block(layer), n, o.tokens / o.seq_len, o.seq_len));
  return most > 0 ? most + o.tokens * bytes_of(o.dtype) * c.spec.hidden : 0;  // and the states that entered
}

// Features of the widest pair of slots that are live at once: the three of an MLP, or those of attention.
int64_t widest_slots(const ModelSpec& spec) {
  int64_t slots = 0;
  for (const auto& ops : spec.kinds) {
    int64_t width = 0;
    for (const Slot s : {Slot::gate, Slot::up, Slot::gate_up}) width += slot_features(spec, ops, s);
    const int64_t attention = slot_features(spec, ops, Slot::qkv) + slot_features(spec, ops, Slot::q) +
                              2 * slot_features(spec, ops, Slot::k) + slot_features(spec, ops, Slot::attn);
    slots = std::max({slots, width, attention + spec.hidden});
  }
  return slots;
}

// Bytes of a mixture: the f32 sum, the logits, and the rows of an expert that sees 4 times its share.
int64_t mixture_bytes(const ModelSpec& spec, int64_t tokens, int64_t elem) {
  int64_t most = 0;
  for (const auto& ops : spec.kinds)
    for (const BlockOp& op : ops)
      if (const Moe* m = std::get_if<Moe>(&op)) {
        const int64_t rows = std::min(tokens, 4 * tokens * m->top_k / m->experts);
        most = std::max(most, tokens * (4 * m->hidden + 4 * m->experts + 16 * m->top_k) +
                                  2 * rows * elem * (m->hidden + 2 * m->gate.out_features));
      }
  return most;
}

bool rounds_inputs(const QuantPlan& plan) {
  return std::any_of(plan.linears.begin(), plan.linears.end(),
                     [](const PlannedLinear& p) { return !p.keep && p.recipe.spec.activations != ActQuant::none; });
}

}  // namespace

int64_t peak_estimate(const Checkpoint& c, const QuantPlan& plan, const PlanOptions& o) {
  const int64_t elem = bytes_of(o.dtype);
  int64_t block = 0, widest_in = 0, largest = 0;  // weights of a block, inputs, weights of a linear
  std::map<int64_t, int64_t> per_layer;
  for (const NamedLinear& l : linears_of(c.spec)) {
    per_layer[l.layer] += l.out * l.in;
    widest_in = std::max(widest_in, l.in);
    largest = std::max(largest, l.out * l.in);
  }
  for (const auto& [layer, weights] : per_layer) block = std::max(block, weights);
  for (const PlannedLinear& p : plan.linears) largest = std::max(largest, p.linear.out * p.linear.in);  // ends too
  if (!plan.calibrates()) return largest * 13;  // weight, working copy, values and codes
  const int64_t states = 2 * o.tokens * elem * (c.spec.hidden + widest_slots(c.spec));
  const int64_t grams = widest_in * widest_in * (4 + 4 + 4 + 8 + 8);  // gram, cross, factor, f64 solve and its copy
  const int64_t rounded = rounds_inputs(plan) ? o.tokens * elem * widest_in : 0;  // a copy of the widest input
  return 2 * block * elem + states + mixture_bytes(c.spec, o.tokens, elem) + grams + rounded + largest * 24 +
         transform_bytes(c, plan, o, block) + learning_bytes(c, plan, o);
}

}  // namespace fewbit
