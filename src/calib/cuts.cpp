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
  const Keep* kept = ops.empty() ? nullptr : std::get_if<Keep>(&ops.back());
  return kept && holds(kept->slots, s);
}

namespace {

// Whether the slot lives in front of the op and is not kept between blocks.
bool takes_room(const std::vector<BlockOp>& ops, size_t at, Slot s) {
  if (s == Slot::x || at == ops.size() || !alive_before(ops, at, s)) return false;
  return std::any_of(ops.begin(), ops.begin() + static_cast<std::ptrdiff_t>(at),
                     [s](const BlockOp& op) { return holds(slots_written(op), s); });
}

}  // namespace

std::optional<size_t> cheapest_cut(const std::vector<BlockOp>& ops, size_t base, size_t to) {
  for (size_t at = to; at > base; --at) {
    bool alone = true;
    for (int s = 0; s < kSlots; ++s) alone &= !takes_room(ops, at, static_cast<Slot>(s));
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
