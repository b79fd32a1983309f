#include "src/quant/block_transforms.h"

#include <algorithm>

#include "kernels/column_stats.h"
#include "kernels/gram.h"
#include "src/calib/observe.h"

namespace fewbit {
namespace {

// Scales per feature need fewer tokens than rounding does; the published AWQ takes as many.
constexpr int64_t kTransformTokens = 65536, kTransformSample = 1024;

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

// What the inputs of the absorbers' consumers look like when the states that enter the block (those of the
// quantized stream) run through it as it is, on kTransformTokens of the tokens.
std::map<size_t, ActivationStats> observe_block(Exec& ex, const ModelSpec& spec,
                                                const std::vector<BlockOp>& ops,
                                                const std::vector<Absorber>& absorbers,
                                                const Stream& entering, int64_t windows,
                                                const RopeTables& ropes, const BlockWeights& weights) {
  std::map<size_t, ActivationStats> stats;
  for (const Absorber& a : absorbers) stats[a.consumers.front()];
  // Windows at even distances, for the draw puts those of one text side by side.
  const int64_t length = entering.tokens() / windows;
  const int64_t count = std::clamp(kTransformTokens / length, int64_t{1}, windows);
  Tensor x = ex.alloc(entering.x().dtype(), {count * length, spec.hidden});
  for (int64_t k = 0; k < count; ++k) {
    const int64_t from = k * windows / count * length;
    ex.copy(entering.x().view().row_range(from, from + length),
            x.view().row_range(k * length, (k + 1) * length));
  }
  Stream stream(ex, spec, std::move(x), count);
  stream.begin_block(ops);
  for (size_t i = 0; i <= stats.rbegin()->first; ++i) {
    if (stats.count(i)) stats[i] = activation_stats(ex, stream.input(std::get<Linears>(ops[i]).in));
    stream.run(i, weights, ropes);
  }
  return stats;
}

}  // namespace

BlockF32 transform_block(Exec& ex, const Checkpoint& c, const QuantPlan& plan, int64_t layer,
                         const Stream& entering, int64_t windows, const RopeTables& ropes,
                         BlockWeights& weights, Phases& phases) {
  const std::vector<BlockOp>& ops = c.spec.block(layer);
  TransformJob job{.ops = &ops, .migration = plan.migration};
  for (const BlockOp& op : ops)
    if (const auto* group = std::get_if<Linears>(&op))
      for (const LinearDef& l : group->items)
        if (const PlannedLinear& p = plan.of(c.spec.prefix(layer) + l.name); !p.keep)
          job.targets[l.name] = {p.recipe.spec, p.recipe.effort, p.recipe.method};
  job.absorbers = usable_absorbers(ops, job.targets);
  BlockF32 rewritten;
  if (job.absorbers.empty()) return rewritten;
  phases.timed("load", [&] { rewritten = load_block_f32(ex, c, layer, job.absorbers); });
  for (const Transform* t : plan.transforms) {
    phases.timed("observe", [&] {
      job.stats = observe_block(ex, c.spec, ops, job.absorbers, entering, windows, ropes, weights);
    });
    phases.timed("transform", [&] {
      t->apply(ex, job, rewritten);
      replace_in(ex, rewritten, entering.x().dtype(), weights);
    });
  }
  return rewritten;
}

}  // namespace fewbit
