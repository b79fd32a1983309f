// BlockLoop, the learning of a block: what follows when all of its linears are coded.
#include "src/quant/loop/block_loop.h"
#include "src/quant/loop/learn/learned_rounding.h"
#include "src/quant/rounding.h"
#include "src/ranks/exchange.h"

namespace fewbit {

// What --minutes leaves to the block at hand: the rest of the time is shared evenly by the blocks that will learn, less
// what the blocks behind this one take besides, which is what those so far took.
double BlockLoop::learning_seconds() const {
  const double so_far = since_start_.seconds(), others = (so_far - learned_seconds_) / static_cast<double>(layer_ + 1);
  int64_t learners = 0;
  for (int64_t layer = layer_; layer < ckpt_.spec.layers; ++layer)
    if (learns_rounding(plan_, ckpt_.spec, layer)) ++learners;
  const double rest = 60 * plan_.minutes - so_far - others * static_cast<double>(ckpt_.spec.layers - layer_ - 1);
  return rest / static_cast<double>(learners);
}

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
  if (plan_.minutes > 0) ex_.sync();
  const Stopwatch since_coded;
  if (plan_.minutes > 0)
    job.seconds_left = [&, seconds = learning_seconds()] {
      ex_.sync();
      return value_of_root(ranks_, seconds - since_coded.seconds());
    };
  phases_.timed("learn", [&] {
    const LearnedResult result = learn_rounding(ex_, job);
    for (CodedLinear& c : coder_.coded()) {
      if (!c.plan->recipe.learns_rounding()) continue;
      validate(c.linear);
      c.record.learned = result.changed;
      c.record.learning_steps = result.steps;
    }
  });
  learned_seconds_ += since_coded.seconds();
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
  features.reserve(slots.size());
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
  InputSums sums(ex_, {.in = group.items[0].in_features}, {}, 1, ranks_);
  pass_learned(op, {group.in}, [&](int64_t, const ChunkShare::Rows& rows) { sums.add({rows[0]}); });
  const InputStats stats = sums.finish();
  for (CodedLinear* c : learned) phases_.timed("measure", [&] { coder_.measure_again(*c, stats); });
}

}  // namespace fewbit
