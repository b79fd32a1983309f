#include "src/calib/residual.h"

#include "src/model/op_slots.h"

namespace fewbit {

std::optional<float> residual_factor(const std::vector<BlockOp>& ops, size_t at) {
  const auto* linears = std::get_if<Linears>(&ops[at]);
  if (!linears || linears->items.size() != 1) return std::nullopt;
  const Slot out = linears->items.front().out;
  for (size_t i = at + 1; i < ops.size(); ++i) {
    if (const auto* sum = std::get_if<AddTo>(&ops[i]); sum && sum->in == out && sum->out == Slot::x) return sum->factor;
    for (const Slot s : slots_written(ops[i]))
      if (s == out || s == Slot::x) return std::nullopt;
  }
  return std::nullopt;
}

}  // namespace fewbit
