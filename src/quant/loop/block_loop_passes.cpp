// BlockLoop, the passes over a block: which weights the two streams run with, where a pass begins and what it shows.
#include "kernels/model/add.h"
#include "src/calib/cuts.h"
#include "src/model/checkpoint_parts.h"
#include "src/quant/loop/block_loop.h"
#include "src/quant/loop/read_ahead.h"
#include "src/run/runner.h"

namespace fewbit {

// Loads the linears of ops [begin, end) that a pass is about to run and that are not there yet.
void BlockLoop::load_linears(size_t begin, size_t end) {
  for (size_t i = begin; i < end; ++i)
    if (!in_waves(ops()[i]))
      for (const LinearDef& l : linears_of(ops()[i])) load(l);
}

// The linear as the unquantized stream has it.
void BlockLoop::load(const LinearDef& l) {
  if (weights_.linears.count(l.name)) return;
  const NamedLinear named{ckpt_.spec.prefix(layer_) + l.name, layer_, l.out_features, l.in_features, l.bias};
  if (Tensor w = taken_ahead(ahead_, ckpt_, named, job_.dtype); !w.empty())
    weights_.linears.emplace(l.name, DenseLinear{.weight = std::move(w), .bias = bias_of(l)});
  else
    weights_.linears.emplace(
        l.name, load_linear(ex_, ckpt_, named, {.dtype = job_.dtype, .weights = Weights::values}, nullptr));
  if (ckpt_.packed(named.name)) return release_linear(ckpt_, named.name);
  release_beside(background_, ckpt_, named);
}

// No pass runs the ops before `end` again.
void BlockLoop::drop_linears(size_t end) {
  if (learning_) return;  // which runs the block from its beginning once more
  for (size_t i = 0; i < end; ++i)
    for (const LinearDef& l : linears_of(ops()[i])) {
      weights_.linears.erase(l.name);
      replaced_.erase(l.name);
    }
}

// Gives the quantized stream its linears, and the unquantized one its own back. Biases stay.
void BlockLoop::swap_replaced() {
  for (auto& [name, linear] : replaced_) {
    const auto it = weights_.linears.find(name);
    if (it == weights_.linears.end()) continue;  // of an op that no pass runs yet
    auto& by = std::get<DenseLinear>(linear);
    auto& dense = std::get<DenseLinear>(it->second);
    std::swap(dense.weight, by.weight);
    std::swap(dense.input, by.input);
  }
}

// A place in the block for what the quantized stream has instead of linears that were never loaded: their biases stay.
void BlockLoop::load_biased(size_t op) {
  for (const LinearDef& l : linears_of(ops()[op]))
    if (replaced_.count(l.name) && !weights_.linears.count(l.name))
      weights_.linears.emplace(l.name, DenseLinear{.bias = bias_of(l)});
}

Tensor BlockLoop::bias_of(const LinearDef& l) {
  const NamedLinear named{ckpt_.spec.prefix(layer_) + l.name, layer_, l.out_features, l.in_features, l.bias};
  return load_bias(ex_, ckpt_, named, job_.dtype);
}

// Where the next passes may begin once this one has shown what stands in front of op `to`: there, if the plan stores
// what lives there; else at the last op in front of which nothing but the residual stream lives, which costs no room.
std::optional<size_t> BlockLoop::cut_before(size_t to) const {
  if (plan_.memory.stores_before(ckpt_.spec.kind(layer_), to)) return to;
  return cheapest_cut(ops(), quantized_->base(), to);
}

// Brings a chunk of both streams in front of an op; the slots that are shown of it.
ChunkShare::Rows BlockLoop::bring(int64_t chunk, size_t to, const Shown& slots, std::optional<size_t> cut,
                                  const Stream::Watch& watch, const Arrived& arrived) {
  run_on();
  const size_t base = quantized_->base();
  const auto seen = [&](size_t op, const Activations& act) {
    watch_kv(op, act);
    if (watch) watch(op, act);
  };
  ChunkShare::Rows rows;
  phases_.timed("forward", [&] {
    const bool ends = last_look_ == to;
    const Activations* full =
        both(chunk) && !full_ends() ? &full_->bring(chunk, to, weights_, ropes_, ends ? ops().size() : cut) : nullptr;
    if (ends && full) runs_on_ = chunk;
    if (full && arrived) arrived(chunk, *full_);
    swap_replaced();
    const Activations& quantized = quantized_->bring(chunk, to, weights_, ropes_, cut, seen);
    if (arrived) arrived(chunk, *quantized_);
    swap_replaced();
    for (const Slot s : slots.quantized) rows.push_back(quantized[s]);
    // A chunk of one stream has something in the other's place, since all that is shown has the same shapes.
    for (const Slot s : slots.full) rows.push_back(full ? (*full)[s] : quantized[s]);
    if (slots.error) rows.push_back(error_between(*full, quantized));
  });
  const double share = static_cast<double>(chunk + 1) / static_cast<double>(chunks_.count());
  const double op = static_cast<double>(base) + share * static_cast<double>(to - base);
  tell(job_, ckpt_.spec, static_cast<double>(layer_) + op / static_cast<double>(ops().size() + 1));
  return rows;
}

void BlockLoop::pass(size_t to, const Shown& slots, const ChunkShare::Show& show, const Stream::Watch& watch,
                     const Arrived& arrived) {
  if (!quantized_) return;
  sum_mixtures(to);
  phases_.timed("load", [&] { load_linears(quantized_->base(), last_look_ == to ? ops().size() : to); });
  const std::optional<size_t> cut = cut_before(to);
  std::vector<int64_t> features;
  for (const std::vector<Slot>& of : {slots.quantized, slots.full})
    for (const Slot s : of) features.push_back(slot_features(ckpt_.spec, ops(), s));
  if (slots.error) features.push_back(ckpt_.spec.width());
  share_.each(
      features, job_.dtype, [&](int64_t chunk) { return bring(chunk, to, slots, cut, watch, arrived); },
      [&](int64_t chunk, const ChunkShare::Rows& rows) { phases_.timed("observe", [&] { show(chunk, rows); }); });
  run_on();
  quantized_->let_go();
  if (full_) full_->let_go();
  if (last_look_ == to) leave_full(to);
  if (!cut) return;
  quantized_->moved(*cut);
  if (full_ && !full_ends()) full_->moved(*cut);
  drop_linears(*cut);
}

// Takes a chunk of the unquantized stream to the end of the block, once it was looked at for the last time.
void BlockLoop::run_on() {
  if (!runs_on_) return;
  phases_.timed("forward", [&] { full_->run_on(*runs_on_, *last_look_, ops().size(), weights_, ropes_); });
  runs_on_.reset();
}

// The unquantized stream is at the block's end: what takes a linear's place does so for good from here on, and those of
// `op` that will be coded wait for that.
void BlockLoop::leave_full(size_t op) {
  full_->moved(ops().size());
  swap_replaced();
  replaced_.clear();
  for (const LinearDef& l : linears_of(ops()[op]))
    if (const PlannedLinear* p = plan_.find(ckpt_.spec.prefix(layer_) + l.name); p && !p->keep)
      weights_.linears.erase(l.name);
}

// What a slot holds in front of an op, in both streams; `error`: and what the residual stream lacks.
EachChunk BlockLoop::input_of(size_t op, Slot slot, bool error) {
  return [this, op, slot, error](const auto& show) {
    Shown slots{.quantized = {slot}, .error = error};
    if (full_) slots.full = {slot};
    pass(op, slots, [&](int64_t chunk, const ChunkShare::Rows& rows) {
      show({rows[0], both(chunk) ? rows[1] : ConstTensorView{}, error ? rows[2] : ConstTensorView{}});
    });
    error_.reset();
  };
}

ConstTensorView BlockLoop::error_between(const Activations& full, const Activations& quantized) {
  const ConstTensorView x = full[Slot::x];
  if (error_.empty() || error_.rows() != x.rows()) error_ = ex_.alloc(job_.dtype, x.shape);
  ex_.copy(x, error_);
  add(ex_, quantized[Slot::x], error_, -1);
  return error_;
}

}  // namespace fewbit
