#include "src/calib/cuts.h"

#include <algorithm>

#include "src/model/op_slots.h"

namespace fewbit {
namespace {

bool holds(const std::vector<Slot>& list, Slot s) { return std::find(list.begin(), list.end(), s) != list.end(); }

}  // namespace

bool alive_before(const std::vector<BlockOp>& ops, size_t at, Slot s) {
  if (s == Slot::x) return true;
  for (size_t i = at; i < ops.size(); ++i) {
    if (holds(slots_read(ops[i]), s)) return true;
    if (holds(slots_written(ops[i]), s)) return false;
  }
  return false;
}

std::optional<size_t> cheapest_cut(const std::vector<BlockOp>& ops, size_t base, size_t to) {
  for (size_t at = to; at > base; --at) {
    bool alone = true;
    for (int s = 0; s < kSlots; ++s)
      alone &= static_cast<Slot>(s) == Slot::x || !alive_before(ops, at, static_cast<Slot>(s));
    if (alone) return at;
  }
  return std::nullopt;
}

int64_t features_alive(const ModelSpec& spec, const std::vector<BlockOp>& ops, size_t at) {
  int64_t n = 0;
  for (int s = 0; s < kSlots; ++s)
    if (const Slot slot = static_cast<Slot>(s); slot != Slot::x && alive_before(ops, at, slot))
      n += slot_features(spec, ops, slot);
  return n;
}

}  // namespace fewbit
