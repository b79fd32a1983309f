// What a block works in: slots, room of single ops, tables of rotary frequencies.
#include <algorithm>

#include "kernels/exec/upload.h"
#include "src/model/op_slots.h"
#include "src/run/block.h"
#include "src/run/plan/step_bytes.h"

namespace fewbit {

Room room_of(Exec& ex, const BlockWeights& weights, const std::string& name, size_t index, DType dtype,
             const Shape& shape) {
  const auto found = weights.rooms.find(name);
  const bool enough = found != weights.rooms.end() && shape[0] <= found->second[index].rows();
  Room room{.own = enough ? Tensor{} : ex.alloc(dtype, shape), .rows = {}};
  room.rows = enough ? found->second[index].view().row_range(0, shape[0]) : room.own.view();
  FEWBIT_ASSERT(room.rows.dtype == dtype && room.rows.shape == shape);
  return room;
}

SlotBuffers::SlotBuffers(Exec& ex, const ModelSpec& spec, int64_t tokens, DType dtype) : tokens_(tokens) {
  for (const std::vector<BlockOp>& block : spec.kinds) {
    std::array<int64_t, kSlots>& widths = widths_.emplace_back();
    for (size_t s = 1; s < widths.size(); ++s)  // 0 is x
      widths[s] = slot_features(spec, block, static_cast<Slot>(s));
  }
  const std::array<int64_t, kSlots> largest = widest_slots(spec);
  for (size_t s = 1; s < largest.size(); ++s)
    if (largest[s] > 0) buffers_[s] = ex.alloc(dtype, {tokens * largest[s]});
}

Activations SlotBuffers::bind(TensorView x, int kind) const {
  FEWBIT_ASSERT(x.rows() <= tokens_);
  Activations act;
  act.choice = choice_.get();
  act[Slot::x] = x;
  const std::array<int64_t, kSlots>& widths = widths_[static_cast<size_t>(kind)];
  for (size_t s = 1; s < widths.size(); ++s)
    if (widths[s] > 0) act.slot[s] = {buffers_[s].view().data, buffers_[s].dtype(), {x.rows(), widths[s]}, x.device};
  return act;
}

RopeTables::RopeTables(Exec& ex, const ModelSpec& spec, int64_t longest) : longest_(longest) {
  const auto add = [&](const std::vector<float>& f) {
    if (!f.empty() && !tables_.count(f)) tables_.emplace(f, upload(ex, f));
  };
  for (const std::vector<BlockOp>& block : spec.kinds)
    for (const BlockOp& op : block)
      if (const CompressKeys* c = std::get_if<CompressKeys>(&op)) {
        add(c->rope.inv_freq);
      } else if (const Rope* r = std::get_if<Rope>(&op)) {
        add(r->params.inv_freq);
        add(r->params.long_inv_freq);
      }
}

ConstTensorView RopeTables::inv_freq(const Rope& op) const { return inv_freq(op.params); }
ConstTensorView RopeTables::inv_freq(const RopeParams& params) const { return tables_.at(params.table(longest_)); }

}  // namespace fewbit
