#pragma once
// Where passes over a block may begin: what lives in front of an op, and what it costs to keep it.
#include <bitset>
#include <optional>
#include <vector>

#include "src/model/model_spec.h"

namespace fewbit {

using SlotSet = std::bitset<kSlots>;  // by number

// The slots of which op `at` and those behind it read what they hold in front of `at`, or blocks behind this one do.
// The residual stream always lives.
SlotSet alive_before(const std::vector<BlockOp>& ops, size_t at);
inline bool alive_before(const std::vector<BlockOp>& ops, size_t at, Slot s) {
  return alive_before(ops, at)[static_cast<size_t>(s)];
}
// The last op behind `base`, up to `to`, in front of which nothing lives but what stands between blocks in any case
// (the residual stream, slots that earlier blocks left): to begin there costs no room. Nothing where there is no such
// op.
std::optional<size_t> cheapest_cut(const std::vector<BlockOp>& ops, size_t base, size_t to);
// Features of the slots besides the residual stream that live in front of the op.
int64_t features_alive(const ModelSpec&, const std::vector<BlockOp>& ops, size_t at);

}  // namespace fewbit
