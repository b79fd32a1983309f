#include "src/calib/stream.h"

#include <algorithm>

#include "src/model/op_slots.h"

namespace fewbit {

Stream::Stream(Exec& ex, const ModelSpec& spec, Tensor x, int64_t seqs)
    : ex_(ex), spec_(spec), x_(std::move(x)), seqs_(seqs) {
  const int64_t len = x_.rows() / seqs;
  Tensor host = Tensor::host(DType::i32, {x_.rows()});
  for (int64_t t = 0; t < x_.rows(); ++t) host.as<int32_t>()[t] = static_cast<int32_t>(t % len);
  positions_ = ex.to_device(host);
}

void Stream::begin_block(const std::vector<BlockOp>& ops) {
  ops_ = &ops;
  activations_ = {};
  activations_[Slot::x] = x_;
}

bool Stream::dead_after(size_t index, Slot s) const {
  const auto holds = [s](const std::vector<Slot>& list) {
    return std::find(list.begin(), list.end(), s) != list.end();
  };
  for (size_t i = index + 1; i < ops_->size(); ++i) {
    if (holds(slots_read((*ops_)[i]))) return false;
    if (holds(slots_written((*ops_)[i]))) return true;
  }
  return true;
}

void Stream::allocate_for(size_t index) {
  const BlockOp& op = (*ops_)[index];
  for (const Slot s : slots_written(op)) {
    Tensor& slot = slots_[static_cast<size_t>(s)];
    if (s == Slot::x || !slot.empty()) continue;
    const auto* act = std::get_if<GatedAct>(&op);
    // The gate's memory serves the activation when nobody reads the gate again; the op may work in place.
    if (act && dead_after(index, act->gate))
      slot = std::move(slots_[static_cast<size_t>(act->gate)]);
    else
      slot = ex_.alloc(x_.dtype(), {tokens(), slot_features(spec_, *ops_, s)});
    activations_[s] = slot;
  }
}

void Stream::release_after(size_t index) {
  for (int s = 0; s < kSlots; ++s)
    if (static_cast<Slot>(s) != Slot::x && dead_after(index, static_cast<Slot>(s)))
      slots_[static_cast<size_t>(s)].reset();
}

void Stream::run(size_t index, const BlockWeights& weights, const RopeTables& ropes) {
  const BlockOp& op = (*ops_)[index];
  allocate_for(index);
  run_op(ex_, op, weights, ropes, TokenLayout{.seqs = seqs_, .positions = positions_, .cache = nullptr}, activations_);
  release_after(index);
}

}  // namespace fewbit
