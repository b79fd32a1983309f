#include "src/calib/cuts.h"

#include <algorithm>
#include <bitset>

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

using Slots = std::bitset<kSlots>;
Slots set_of(const std::vector<Slot>& list) {
  Slots all;
  for (const Slot s : list) all.set(static_cast<size_t>(s));
  return all;
}
const Slots& state() {
  static const Slots x = set_of({Slot::x});
  return x;
}

// All that is alive besides the state, from the end backwards: a plan asks for every op of every block.
Slots alive_slots(const std::vector<BlockOp>& ops, size_t at) {
  const Keep* kept = ops.empty() ? nullptr : std::get_if<Keep>(&ops.back());
  Slots alive = kept ? set_of(kept->slots) : Slots();
  for (size_t i = ops.size(); i-- > at;) alive = (alive & ~set_of(slots_written(ops[i]))) | set_of(slots_read(ops[i]));
  return alive & ~state();
}

}  // namespace

std::optional<size_t> cheapest_cut(const std::vector<BlockOp>& ops, size_t base, size_t to) {
  for (size_t at = to; at > base; --at) {
    if (at == ops.size()) return at;
    Slots written;  // by what stands in front; what no op wrote is kept between blocks
    for (size_t i = 0; i < at; ++i) written |= set_of(slots_written(ops[i]));
    if ((alive_slots(ops, at) & written).none()) return at;
  }
  return std::nullopt;
}

int64_t features_alive(const ModelSpec& spec, const std::vector<BlockOp>& ops, size_t at) {
  const Slots alive = alive_slots(ops, at);
  int64_t n = 0;
  for (size_t s = 0; s < alive.size(); ++s)
    if (alive[s]) n += slot_features(spec, ops, static_cast<Slot>(s));
  return n;
}

}  // namespace fewbit
