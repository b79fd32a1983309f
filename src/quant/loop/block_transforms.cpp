#include "src/quant/loop/block_transforms.h"

#include <algorithm>

#include "kernels/statistics/column_stats.h"
#include "kernels/statistics/gram.h"
#include "src/calib/observe.h"
#include "src/run/moe.h"

namespace fewbit {
namespace {

// Scales per feature need fewer tokens than rounding does; the published AWQ takes as many.
constexpr int64_t kTransformTokens = 65536;
// An expert that its router sent fewer of them is shown these many, evenly spaced: what it would do with the
// tokens of its layer. (Other experts' activations would say nothing of its features.)
constexpr int64_t kExpertTokens = 1024;

ActivationStats activation_stats(Exec& ex, ConstTensorView x) {
  ActivationStats s;
  s.input.tokens = x.rows();
  s.input.gram = ex.alloc_zeros(DType::f32, {x.cols(), x.cols()});
  s.absmax = ex.alloc_zeros(DType::f32, {x.cols()});
  s.abssum = ex.alloc_zeros(DType::f64, {x.cols()});
  gram(ex, x, s.input.gram);
  column_stats(ex, x, {}, s.absmax, s.abssum);
  s.sample = spread_rows(ex, x, kTransformSample);
  return s;
}

// What down of an expert multiplies, for the rows of x [tokens, hidden] that its router sends it.
Tensor inside_expert(Exec& ex, const Moe& op, int expert, const Routing& routing, const BlockWeights& weights,
                     ConstTensorView x) {
  const auto linear = [&](const LinearDef& def) -> const Linear& {
    return weights.linears.at(op.of_expert(def, expert).name);
  };
  return expert_activation(ex, op, linear(op.gate), linear(op.up),
                           routing.tokens(expert) >= kExpertTokens ? gather_rows(ex, x, routing.rows_of(expert))
                                                                   : spread_rows(ex, x, kExpertTokens));
}

// What the absorbers' activations look like when the states that enter the block (those of the
// quantized stream) run through it as it is, on kTransformTokens of the tokens.
std::map<std::string, ActivationStats> observe_block(Exec& ex, const ModelSpec& spec, const std::vector<BlockOp>& ops,
                                                     const std::vector<Absorber>& absorbers, const Stream& entering,
                                                     int64_t windows, const RopeTables& ropes,
                                                     const BlockWeights& weights) {
  // Windows at even distances, for the draw puts those of one text side by side.
  const int64_t length = entering.tokens() / windows;
  const int64_t count = std::clamp(kTransformTokens / length, int64_t{1}, windows);
  Tensor x = ex.alloc(entering.x().dtype(), {count * length, spec.hidden});
  for (int64_t k = 0; k < count; ++k) {
    const int64_t from = k * windows / count * length;
    ex.copy(entering.x().view().row_range(from, from + length), x.view().row_range(k * length, (k + 1) * length));
  }
  Stream stream(ex, spec, std::move(x), count);
  stream.begin_block(ops);
  std::map<std::string, ActivationStats> stats;
  for (size_t i = 0; stats.size() < absorbers.size(); ++i) {
    std::optional<Routing> routing;
    for (const Absorber& a : absorbers) {
      if (a.consumers.front() != i) continue;
      const auto* moe = std::get_if<Moe>(&ops[i]);
      const ConstTensorView in = stream.input(moe ? moe->in : std::get<Linears>(ops[i]).in);
      if (a.expert < 0) {
        stats[a.name] = activation_stats(ex, in);
        continue;
      }
      if (!routing) routing = route_tokens(ex, *moe, weights, in);
      stats[a.name] = activation_stats(ex, inside_expert(ex, *moe, a.expert, *routing, weights, in));
    }
    stream.run(i, weights, ropes);
  }
  return stats;
}

}  // namespace

BlockF32 transform_block(Exec& ex, const Checkpoint& c, const QuantPlan& plan, int64_t layer, const Stream& entering,
                         int64_t windows, const RopeTables& ropes, BlockWeights& weights, Phases& phases) {
  const std::vector<BlockOp>& ops = c.spec.block(layer);
  TransformJob job{.ops = &ops, .migration = plan.migration};
  for (const BlockOp& op : ops)
    for (const LinearDef& l : linears_of(op))
      if (const PlannedLinear& p = plan.of(c.spec.prefix(layer) + l.name); !p.keep)
        job.targets[l.name] = {p.recipe.spec, p.recipe.effort, p.recipe.method};
  job.absorbers = usable_absorbers(ops, job.targets);
  BlockF32 rewritten;
  if (job.absorbers.empty()) return rewritten;
  phases.timed("load", [&] { rewritten = load_block_f32(ex, c, layer, job.absorbers); });
  for (const Transform* t : plan.transforms) {
    phases.timed("observe",
                 [&] { job.stats = observe_block(ex, c.spec, ops, job.absorbers, entering, windows, ropes, weights); });
    phases.timed("transform", [&] {
      t->apply(ex, job, rewritten);
      replace_in(ex, rewritten, entering.x().dtype(), weights);
    });
  }
  return rewritten;
}

}  // namespace fewbit
