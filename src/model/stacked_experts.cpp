// Experts out of their stacks: gate and up, or down, of an expert are whole rows, so a name, an offset and a shape do.
#include "src/model/stacked_experts.h"

#include <fmt/format.h>

#include <cstring>

#include "src/core/error.h"

namespace fewbit {
namespace {

// Takes stacks apart in the index of a store.
class Unstacking {
 public:
  Unstacking(const std::filesystem::path& path, CheckpointIndex& index, WeightStore::Makers& makers)
      : path_(path), index_(index), makers_(makers) {}

  // The tensor `stack` [experts, all rows, columns] to the linears `defs` of every expert, one below the other.
  void take(const std::string& prefix, const std::string& stack, const Moe& moe,
            const std::vector<const LinearDef*>& defs) {
    const auto at = index_.tensors.find(prefix + stack);
    if (at == index_.tensors.end()) return;
    int64_t rows = 0;
    for (const LinearDef* d : defs) rows += d->out_features;
    const int64_t columns = defs.front()->in_features;
    if (moe.stacks != Moe::Stacks::rows) return take_turned(prefix, stack, moe, defs, rows);
    const TensorInfo whole = at->second;
    if (const Shape expected{moe.experts, rows, columns}; !(whole.shape == expected))
      fail(ErrorKind::checkpoint, fmt::format("{}: {}: expected shape {} (experts, outputs, inputs), found {}",
                                              path_.string(), whole.name, expected.str(), whole.shape.str()));
    index_.tensors.erase(at);
    const int64_t row_bytes = whole.bytes / (moe.experts * rows);
    int64_t begin = whole.begin;
    for (int expert = 0; expert < moe.experts; ++expert)
      for (const LinearDef* d : defs) {
        TensorInfo one = whole;
        one.name = prefix + moe.of_expert(*d, expert).name + ".weight";
        one.shape = {d->out_features, columns};
        one.begin = begin;
        one.bytes = d->out_features * row_bytes;
        begin += one.bytes;
        index_.tensors[one.name] = one;
      }
  }

 private:
  // [experts, inputs, outputs], the linears' outputs side by side or by turns: what an expert's linear takes is
  // gathered when asked for.
  void take_turned(const std::string& prefix, const std::string& stack, const Moe& moe,
                   const std::vector<const LinearDef*>& defs, int64_t rows) {
    const bool by_turns = moe.stacks == Moe::Stacks::turned_by_turns;
    const auto count = static_cast<int64_t>(defs.size());
    for (const bool bias : {false, true}) {
      if (bias && !moe.up.bias) break;
      const auto at = index_.tensors.find(prefix + stack + (bias ? "_bias" : ""));
      const int64_t in = bias ? 1 : defs.front()->in_features;
      const Shape expected = bias ? Shape{moe.experts, rows} : Shape{moe.experts, in, rows};
      if (at == index_.tensors.end() || !(at->second.shape == expected))
        fail(ErrorKind::checkpoint,
             fmt::format("{}: {}: expected shape {}, found {}", path_.string(), prefix + stack + (bias ? "_bias" : ""),
                         expected.str(), at == index_.tensors.end() ? "nothing" : at->second.shape.str()));
      const TensorInfo whole = at->second;
      index_.tensors.erase(at);
      const ConstTensorView all = index_.view(whole);
      for (int expert = 0; expert < moe.experts; ++expert)
        for (int64_t i = 0; i < count; ++i) {
          const LinearDef& def = *defs[static_cast<size_t>(i)];
          const int64_t out = def.out_features, first = by_turns ? i : i * out, step = by_turns ? count : 1;
          TensorInfo one = whole;
          one.name = prefix + moe.of_expert(def, expert).name + (bias ? ".bias" : ".weight");
          one.shape = bias ? Shape{out} : Shape{out, in};
          one.bytes = out * in * bytes_of(whole.dtype);
          makers_[one.name] = [all, expert, in, rows, first, step, shape = one.shape] {
            return gathered(all, expert * in * rows + first, in, rows, step, shape);
          };
          index_.tensors[one.name] = one;
        }
    }
  }

  // The columns 0, step, 2 step … of a matrix [in, rows] whose first column begins at element `first`, as rows of
  // `shape`.
  static Tensor gathered(ConstTensorView all, int64_t first, int64_t in, int64_t rows, int64_t step,
                         const Shape& shape) {
    Tensor t = Tensor::host(all.dtype, shape);
    const int64_t bytes = bytes_of(all.dtype);
    const auto* from = static_cast<const uint8_t*>(all.data) + first * bytes;
    auto* to = static_cast<uint8_t*>(t.view().data);
    for (int64_t o = 0; o < shape.numel() / in; ++o)
      for (int64_t i = 0; i < in; ++i)
        std::memcpy(to + (o * in + i) * bytes, from + (i * rows + o * step) * bytes, static_cast<size_t>(bytes));
    return t;
  }

  const std::filesystem::path& path_;
  CheckpointIndex& index_;
  WeightStore::Makers& makers_;
};

}  // namespace

WeightStore with_single_experts(const ModelSpec& spec, WeightStore store) {
  return std::move(store).reindexed(
      [&](const std::filesystem::path& path, CheckpointIndex& index, WeightStore::Makers& makers) {
        Unstacking stacks(path, index, makers);
        for (int64_t layer = 0; layer < spec.layers; ++layer)
          for (const BlockOp& op : spec.block(layer)) {
            const Moe* m = std::get_if<Moe>(&op);
            if (!m || m->stacked_gate_up.empty()) continue;
            stacks.take(spec.prefix(layer), m->stacked_gate_up, *m, {&m->gate, &m->up});
            stacks.take(spec.prefix(layer), m->stacked_down, *m, {&m->down});
          }
      });
}

}  // namespace fewbit
