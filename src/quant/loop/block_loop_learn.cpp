// BlockLoop, the learning of a block: what follows when all of its linears are coded.
#include "src/quant/loop/block_loop.h"
#include "src/quant/loop/learned_rounding.h"
#include "src/quant/rounding.h"

namespace fewbit {

// Moves the codes of the block down the gradient of its output error, then runs the quantized stream through
// the block again, from the states that entered it.
void BlockLoop::learn() {
  swap_replaced();  // from here on the block has the quantized stream's weights
  replaced_.clear();
  BlockLearning job{.spec = &ckpt_.spec,
                    .layer = layer_,
                    .ropes = &ropes_,
                    .weights = &weights_,
                    .entering = &quantized_->entering(),
                    .target = &full_->x(),
                    .share = &share_,
                    .seed = job_.seed,
                    .linears = {},
                    .progress = [&](double f) { tell(job_, ckpt_.spec, static_cast<double>(layer_) + f); }};
  for (CodedLinear& c : coder_.coded())
    if (c.plan->recipe.learns_rounding()) job.linears.push_back({.name = c.name, .coded = &c.linear});
  phases_.timed("learn", [&] {
    if (!learn_rounding(ex_, job).changed) return;
    for (CodedLinear& c : coder_.coded()) {
      validate(c.linear);
      if (c.plan->recipe.learns_rounding()) c.record.learned = true;
    }
  });
  for (const CodedLinear& c : coder_.coded())
    std::get<DenseLinear>(weights_.linears.at(c.name)).weight = values_of(ex_, c.linear, job_.dtype);
  run_learned();
}

void BlockLoop::run_learned() {
  kv_range_ = {};
  quantized_->begin_block_again();
  for (size_t i = 0; i < ops().size(); ++i)
    if (const auto* group = std::get_if<Linears>(&ops()[i])) measure_learned(i, *group);
  pass_learned(ops().size(), {}, {});
}

void BlockLoop::pass_learned(size_t to, const std::vector<Slot>& slots, const ChunkShare::Show& show) {
  const std::optional<size_t> cut = cut_before(to);
  std::vector<int64_t> features;
  for (const Slot s : slots) features.push_back(slot_features(ckpt_.spec, ops(), s));
  const auto kv = [&](size_t op, const Activations& a) { watch_kv(op, a); };
  const auto bring = [&](int64_t chunk) {
    ChunkShare::Rows rows;
    phases_.timed("forward", [&] {
      const Activations& act = quantized_->bring(chunk, to, weights_, ropes_, cut, kv);
      for (const Slot s : slots) rows.push_back(act[s]);
    });
    return rows;
  };
  share_.each(features, job_.dtype, bring, [&](int64_t chunk, const ChunkShare::Rows& rows) {
    phases_.timed("measure", [&] { show(chunk, rows); });
  });
  if (cut) quantized_->moved(*cut);
}

// The records of the learned linears of a group on the inputs that they have now.
void BlockLoop::measure_learned(size_t op, const Linears& group) {
  std::vector<CodedLinear*> learned;
  for (const LinearDef& l : group.items)
    for (CodedLinear& c : coder_.coded())
      if (c.name == l.name && !c.weight.empty()) learned.push_back(&c);
  if (learned.empty()) return;
  InputSums sums(ex_, group.items[0].in_features, false, {}, 1, ranks_);
  pass_learned(op, {group.in}, [&](int64_t, const ChunkShare::Rows& rows) { sums.add(rows[0], {}); });
  const InputStats stats = sums.finish();
  for (CodedLinear* c : learned) phases_.timed("measure", [&] { coder_.measure_again(*c, stats); });
}

}  // namespace fewbit
