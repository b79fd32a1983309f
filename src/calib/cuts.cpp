#include "src/calib/cuts.h"

#include "src/model/op_slots.h"

namespace fewbit {
namespace {

SlotSet set_of(const std::vector<Slot>& list) {
  SlotSet all;
  for (const Slot s : list) all.set(static_cast<size_t>(s));
  return all;
}
constexpr size_t kState = static_cast<size_t>(Slot::x);

}  // namespace

SlotSet alive_before(const std::vector<BlockOp>& ops, size_t at) {
  const Keep* kept = ops.empty() ? nullptr : std::get_if<Keep>(&ops.back());
  SlotSet alive = kept ? set_of(kept->slots) : SlotSet();
  for (size_t i = ops.size(); i-- > at;) alive = (alive & ~set_of(slots_written(ops[i]))) | set_of(slots_read(ops[i]));
  return alive.set(kState);
}

std::optional<size_t> cheapest_cut(const std::vector<BlockOp>& ops, size_t base, size_t to) {
  for (size_t at = to; at > base; --at) {
    if (at == ops.size()) return at;
    SlotSet written;  // by what stands in front; what no op wrote is kept between blocks
    for (size_t i = 0; i < at; ++i) written |= set_of(slots_written(ops[i]));
    if ((alive_before(ops, at) & written.reset(kState)).none()) return at;
  }
  return std::nullopt;
}

int64_t features_alive(const ModelSpec& spec, const std::vector<BlockOp>& ops, size_t at) {
  const SlotSet alive = alive_before(ops, at).reset(kState);
  int64_t n = 0;
  for (size_t s = 0; s < alive.size(); ++s)
    if (alive[s]) n += slot_features(spec, ops, static_cast<Slot>(s));
  return n;
}

}  // namespace fewbit
