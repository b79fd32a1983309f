#include "src/run/streamed.h"

#include <algorithm>
#include <map>

#include "src/model/checkpoint_parts.h"
#include "src/run/rank_sums.h"

namespace fewbit {
namespace {

// States of all sequences, in device or host memory.
class WaitingStates {
 public:
  WaitingStates(Exec& ex, int64_t tokens, int64_t hidden, DType dtype) : ex_(ex) {
    const int64_t bytes = tokens * hidden * bytes_of(dtype);
    on_host_ = ex.on_cuda() && bytes > ex.free_bytes() / 2;
    all_ = on_host_ ? ex.alloc_pinned(dtype, {tokens, hidden}) : ex.alloc(dtype, {tokens, hidden});
  }
  // Calls f with rows [begin, end) on the device; what f writes into them stays.
  template <class F>
  void with(int64_t begin, int64_t end, const F& f) {
    const TensorView rows = all_.view().row_range(begin, end);
    if (!on_host_) return f(rows);
    const Tensor x = ex_.to_device(rows);
    f(x.view());
    ex_.copy(x, rows);
  }

 private:
  Exec& ex_;
  bool on_host_ = false;
  Tensor all_;
};

// Slots that outlive their block, of all sequences.
class KeptSlots {
 public:
  KeptSlots(Exec& ex, int64_t tokens, DType dtype) : ex_(ex), tokens_(tokens), dtype_(dtype) {}
  // Rows [begin, end) into the slots of a block that it has, and back out of those that it keeps.
  void bring(int64_t begin, int64_t end, const Activations& act) {
    for (auto& [slot, states] : kept_)
      if (const TensorView here = act[slot]; here.data)
        states.with(begin, end, [&](TensorView rows) { ex_.copy(rows, here); });
  }
  void take(const Keep& keep, int64_t begin, int64_t end, const Activations& act) {
    for (size_t i = 0; i < keep.slots.size(); ++i) {
      const Slot slot = keep.slots[i];
      WaitingStates& states = kept_.try_emplace(slot, ex_, tokens_, keep.features[i], dtype_).first->second;
      states.with(begin, end, [&](TensorView rows) { ex_.copy(act[slot], rows); });
    }
  }

 private:
  Exec& ex_;
  int64_t tokens_;
  DType dtype_;
  std::map<Slot, WaitingStates> kept_{};
};

}  // namespace

std::vector<std::string> run_streamed(Exec& ex, const Checkpoint& c, const LoadOptions& o, const StreamedPass& pass,
                                      const std::function<void(int64_t, int64_t, ConstTensorView, const Ends&)>& take) {
  const ModelSpec spec = shared_spec(c, o);
  const auto tokens = static_cast<int64_t>(pass.ids.size());
  const int64_t len = tokens / pass.seqs, batch = std::min(pass.batch_seqs, pass.seqs) * len;
  std::vector<std::string> lines;
  const Ends ends = load_ends(ex, c, o, &lines);
  const RopeTables ropes(ex, spec, len);
  WaitingStates states(ex, tokens, spec.width(), o.dtype);
  const SlotBuffers slots(ex, spec, batch, o.dtype);
  KeptSlots kept(ex, tokens, o.dtype);
  const Tensor ids = ex.to_device(Tensor::host_from<int32_t>(DType::i32, {tokens}, pass.ids));
  // Of every batch the keys that were chosen last, where blocks behind look at them too.
  std::vector<Tensor> choices(choice_that_lasts(spec) > 0 ? static_cast<size_t>((tokens + batch - 1) / batch) : 1);
  const auto for_batches = [&](const auto& f) {
    for (int64_t begin = 0; begin < tokens; begin += batch) {
      const int64_t end = std::min(tokens, begin + batch);
      states.with(begin, end, [&](TensorView x) { f(begin, end, x); });
    }
  };
  const auto embedded = [&](int64_t begin, int64_t end) {
    const auto ids = pass.ids.subspan(static_cast<size_t>(begin), static_cast<size_t>(end - begin));
    return embed_tokens(ex, spec, ends, ids, (end - begin) / len, o.dtype);
  };
  for_batches([&](int64_t begin, int64_t end, TensorView x) { ex.copy(embedded(begin, end).x, x); });
  const Tensor positions = embedded(0, batch).positions;  // alike in every batch
  LinearNotes notes;
  for (int64_t layer = 0; layer < spec.layers; ++layer) {
    const BlockWeights weights = load_block(ex, c, layer, o, &notes);
    for (const BlockOp& op : spec.block(layer))  // what was read is not needed a second time
      for (const LinearDef& l : linears_of(op)) release_linear(c, spec.prefix(layer) + l.name);
    for_batches([&](int64_t begin, int64_t end, TensorView x) {
      Activations act = slots.bind(x, spec.kind(layer));
      kept.bring(begin, end, act);
      act.choice = &choices[choices.size() == 1 ? 0 : static_cast<size_t>(begin / batch)];
      run_block(ex, spec.block(layer), weights, ropes,
                {.seqs = (end - begin) / len,
                 .positions = positions.view().row_range(0, end - begin),
                 .ids = ids.view().row_range(begin, end),
                 .ranks = o.ranks},
                act);
      if (const Keep* keep = std::get_if<Keep>(&spec.block(layer).back())) kept.take(*keep, begin, end, act);
    });
    if (pass.progress) pass.progress(layer + 1, spec.layers);
  }
  for_batches([&](int64_t begin, int64_t end, TensorView x) { take(begin / len, end / len, x, ends); });
  for (std::string& line : lines_of(notes)) lines.push_back(std::move(line));
  return lines;
}

}  // namespace fewbit
