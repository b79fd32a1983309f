#include "src/calib/stream.h"

#include <fmt/format.h>

#include <algorithm>

#include "kernels/model/cast.h"
#include "src/calib/cuts.h"
#include "src/model/op_slots.h"
#include "src/run/moe.h"

namespace fewbit {

void need_no_shared_choice(const ModelSpec& spec, const std::string& what, int64_t length) {
  const int64_t most = choice_that_lasts(spec);
  if (most == 0 || length <= most) return;
  fail(ErrorKind::usage,
       fmt::format("{}: layers share a choice of {} keys, and {} looks at each layer by itself: expected "
                   "windows of at most {} tokens, found {}; give --seq-len {}",
                   spec.arch, most, what, most, length, most));
}

Stream::Stream(StateStore& store, const ModelSpec& spec, const Chunks& chunks, DType dtype,
               std::span<const int32_t> ids)
    : store_(store), spec_(spec), chunks_(chunks), dtype_(dtype) {
  Tensor host = Tensor::host(DType::i32, {chunks.most_rows()});
  for (int64_t t = 0; t < host.numel(); ++t) host.as<int32_t>()[t] = static_cast<int32_t>(t % chunks.length);
  positions_ = store.exec().to_device(host);
  if (reads_tokens(spec)) {
    FEWBIT_ASSERT(static_cast<int64_t>(ids.size()) == chunks.tokens());
    ids_ = store.exec().to_device(Tensor::host_from<int32_t>(DType::i32, {chunks.tokens()}, ids));
  }
  stored_.emplace(Slot::x, States(store, chunks, dtype, spec.width()));
  if (store.ahead() && store.exec().on_cuda()) {
    side_.emplace(store.exec(), kSlots);
    out_.emplace(store.exec(), kSlots);
  }
  choices_.resize(choice_that_lasts(spec) > 0 ? static_cast<size_t>(chunks.count()) : 1);
}

void Stream::begin_block(const std::vector<BlockOp>& ops) {
  FEWBIT_ASSERT(next_.empty());
  const SlotSet alive = alive_before(ops, 0);
  std::erase_if(stored_, [&](const auto& entry) { return !alive[static_cast<size_t>(entry.first)]; });
  ops_ = &ops;
  base_ = 0;
  sums_.clear();
  entering_.reset();
  keeps_entering_ = false;
}

void Stream::begin_block_again() {
  if (entering_) {  // nothing came where another rank has all chunks
    stored_.clear();
    stored_.emplace(Slot::x, std::move(*entering_));
  }
  begin_block(*ops_);
}

bool Stream::written_between(size_t begin, size_t end, Slot s) const {
  for (size_t i = begin; i < end; ++i) {
    const std::vector<Slot> written = slots_written((*ops_)[i]);
    if (std::find(written.begin(), written.end(), s) != written.end()) return true;
  }
  return false;
}

// Binds the stored slots of the chunk: copies where an op up to `to` writes them or they lie elsewhere. A residual
// stream that will take the place of what it is made from, as it is in front of `to`, is made there.
void Stream::load(int64_t chunk, size_t to, std::optional<size_t> cut) {
  Exec& ex = store_.exec();
  activations_ = {};
  activations_.choice = &choices_[choices_.size() == 1 ? 0 : static_cast<size_t>(chunk)];
  for (Tensor& t : slots_) t.reset();
  for (auto& [slot, states] : stored_) {
    const ConstTensorView here = states.resident(chunk);
    if (here.data && !written_between(base_, to, slot)) {
      // Nothing writes through this view: a slot that is written was copied.
      activations_[slot] = {const_cast<void*>(here.data), here.dtype, here.shape, here.device};
      continue;
    }
    const bool replaced = slot == Slot::x && !keeps_entering_ && cut && *cut > base_;
    if (here.data && replaced && !written_between(*cut, to, slot)) {
      activations_[slot] = states.in_place(chunk);
      continue;
    }
    Tensor& memory = slots_[static_cast<size_t>(slot)];
    if (const auto came = ahead_.find(slot); came != ahead_.end() && coming_ == chunk) {
      side_->land(static_cast<int>(slot));
      memory = std::move(came->second);
      activations_[slot] = memory;
      continue;
    }
    memory = ex.alloc(dtype_, {chunks_.rows(chunk), states.features()});
    states.get(chunks_.begin(chunk), chunks_.begin(chunk) + chunks_.rows(chunk), memory);
    states.expect(chunk + 1);
    activations_[slot] = memory;
  }
  load_ahead(chunk + 1);
}

// Begins to bring what lies in host memory of a chunk, while the one before it is computed.
void Stream::load_ahead(int64_t chunk) {
  ahead_.clear();
  coming_ = -1;
  if (!side_ || chunk >= chunks_.count()) return;
  for (const auto& [slot, states] : stored_) {
    const ConstTensorView host = states.pinned(chunk);
    if (!host.data) continue;
    const Tensor& memory = ahead_[slot] = store_.exec().alloc(dtype_, host.shape);
    side_->begin(static_cast<int>(slot), host, memory);
    coming_ = chunk;
  }
}

void Stream::save(int64_t chunk, size_t at, size_t to) {
  const SlotSet alive = alive_before(*ops_, at);
  for (int i = 0; i < kSlots; ++i) {
    const Slot s = static_cast<Slot>(i);
    const TensorView now = activations_[s];
    if (!now.data || !alive[static_cast<size_t>(i)]) continue;
    const auto before = stored_.find(s);
    if (before != stored_.end() && !written_between(base_, at, s)) continue;
    // A chunk's residual stream takes the place of what it was made from, unless that is wanted again.
    const bool replaces = s == Slot::x && !keeps_entering_;
    States& states =
        replaces ? before->second : next_.try_emplace(s, store_, chunks_, dtype_, now.cols()).first->second;
    put(states, chunk, s, written_between(at, to, s));
  }
  // What was only for the ops in front of the cut goes now and not with all other chunks, or both would be there at
  // once.
  for (auto& [slot, states] : stored_)
    if (!alive[static_cast<size_t>(slot)]) states.drop(chunk);
}

// Stores a slot of the chunk at hand. Memory that no op of this pass writes again is kept as it is, or until it was
// copied beside what the device computes.
void Stream::put(States& states, int64_t chunk, Slot s, bool rewritten) {
  const TensorView now = activations_[s];
  Tensor& memory = slots_[static_cast<size_t>(s)];
  if (rewritten || memory.view().data != now.data || memory.shape() != now.shape) return states.put(chunk, now);
  if (out_) {
    if (const TensorView host = states.departing(chunk, now); host.data) {
      land(s);
      leaving_[s] = std::move(memory);
      return out_->begin(static_cast<int>(s), now, host);
    }
  }
  states.put(chunk, std::move(memory));
}

// Memory that has left is free again.
void Stream::land(Slot s) {
  if (leaving_.count(s) == 0) return;
  out_->land(static_cast<int>(s));
  leaving_.erase(s);
}

void Stream::moved(size_t cut) {
  FEWBIT_ASSERT(cut >= base_ && cut <= ops_->size());
  for (auto& [slot, states] : next_) {
    if (slot == Slot::x) {
      entering_ = std::move(stored_.at(slot));
      keeps_entering_ = false;
    }
    stored_.insert_or_assign(slot, std::move(states));
  }
  next_.clear();
  base_ = cut;
  std::erase_if(sums_, [&](const auto& entry) { return entry.first < cut; });
  const SlotSet alive = alive_before(*ops_, cut);
  std::erase_if(stored_, [&](const auto& entry) { return !alive[static_cast<size_t>(entry.first)]; });
}

void Stream::let_go() {
  activations_ = {};
  for (Tensor& t : slots_) t.reset();
  while (!leaving_.empty()) land(leaving_.begin()->first);
}

void Stream::allocate_for(size_t index, int64_t rows) {
  const BlockOp& op = (*ops_)[index];
  for (const Slot s : slots_written(op)) {
    Tensor& slot = slots_[static_cast<size_t>(s)];
    if (s == Slot::x || !slot.empty()) continue;
    const auto* act = std::get_if<GatedAct>(&op);
    Tensor* gate = act ? &slots_[static_cast<size_t>(act->gate)] : nullptr;
    // The gate's memory serves the activation when nobody reads the gate again; the op may work in place.
    if (gate && !gate->empty() && !alive_before(*ops_, index + 1, act->gate))
      slot = std::move(*gate);
    else
      slot = store_.exec().alloc(dtype_, {rows, slot_features(spec_, *ops_, s)});
    activations_[s] = slot;
  }
}

void Stream::release_after(size_t index) {
  const SlotSet alive = alive_before(*ops_, index + 1);
  for (size_t i = 0; i < alive.size(); ++i)
    if (!alive[i]) {
      slots_[i].reset();
      activations_[static_cast<Slot>(i)] = {};
    }
}

void Stream::add_experts(int64_t chunk, size_t op, const BlockWeights& weights, int first, int last) {
  Exec& ex = store_.exec();
  const Moe& moe = std::get<Moe>((*ops_)[op]);
  States& sums = sums_.try_emplace(op, store_, chunks_, DType::f32, moe.hidden).first->second;
  const Tensor sum = ex.alloc_zeros(DType::f32, {chunks_.rows(chunk), moe.hidden});
  if (first > 0) sums.get(chunks_.begin(chunk), chunks_.begin(chunk) + chunks_.rows(chunk), sum);
  sums.expect(chunk + 1);
  const Routing routing = route_tokens(ex, moe, weights, activations_[moe.routed()]);
  fewbit::add_experts(ex, moe, weights, routing, activations_[moe.in], first, last, sum);
  sums.put(chunk, sum);
}

// What a mixture answers, where it was summed before.
bool Stream::take_sums(int64_t chunk, size_t op) {
  const auto found = sums_.find(op);
  if (found == sums_.end()) return false;
  const Tensor sum = store_.exec().alloc(DType::f32, {chunks_.rows(chunk), found->second.features()});
  found->second.get(chunks_.begin(chunk), chunks_.begin(chunk) + chunks_.rows(chunk), sum);
  cast(store_.exec(), sum, activations_[std::get<Moe>((*ops_)[op]).out]);
  return true;
}

const Activations& Stream::bring(int64_t chunk, size_t to, const BlockWeights& weights, const RopeTables& ropes,
                                 std::optional<size_t> cut, const Watch& watch) {
  load(chunk, std::max(to, cut.value_or(to)), cut);
  run(chunk, base_, to, weights, ropes, cut, watch);
  if (cut == to && to > base_) save(chunk, to, to);
  return activations_;
}

void Stream::run_on(int64_t chunk, size_t to, size_t cut, const BlockWeights& weights, const RopeTables& ropes) {
  run(chunk, to, cut, weights, ropes, {}, {});
  save(chunk, cut, cut);
}

void Stream::run(int64_t chunk, size_t begin, size_t end, const BlockWeights& weights, const RopeTables& ropes,
                 std::optional<size_t> cut, const Watch& watch) {
  const int64_t rows = chunks_.rows(chunk);
  TokenLayout layout{.seqs = chunks_.seqs(chunk), .positions = positions_.view().row_range(0, rows)};
  if (!ids_.empty()) layout.ids = ids_.view().row_range(chunks_.begin(chunk), chunks_.begin(chunk) + rows);
  for (size_t i = begin; i < end; ++i) {
    if (cut == i && i > base_) save(chunk, i, end);
    if (watch) watch(i, activations_);
    allocate_for(i, rows);
    if (!take_sums(chunk, i)) run_op(store_.exec(), (*ops_)[i], weights, ropes, layout, activations_);
    release_after(i);
  }
}

}  // namespace fewbit
