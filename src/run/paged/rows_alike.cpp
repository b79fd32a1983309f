#include "src/run/paged/rows_alike.h"

#include <algorithm>

#include "kernels/products/tile_weights.h"

namespace fewbit {
namespace {

struct TakesAnyRows {
  DType x;
  bool tiles(ConstTensorView w) const { return x == DType::bf16 && w.dtype == x && cpu::tiles_fit(w.rows(), w.cols()); }
  bool operator()(const DenseLinear& l) const { return tiles(l.weight) && !l.input; }
  bool operator()(const MarlinLinear&) const { return false; }
  bool operator()(const Fp4Linear&) const { return false; }
  bool operator()(const RowLinear& l) const {
    const RowPackedView view{.codes = l.codes,
                             .scales = l.scales,
                             .zeros = l.zeros,
                             .group_of = l.group_of,
                             .bits = l.bits,
                             .in = l.in,
                             .group = l.group};
    return x == DType::bf16 && cpu::tile_weight(view).has_value();
  }
  bool operator()(const ByteLinear& l) const {
    if (l.codes.dtype() == DType::i8) return true;
    return x == DType::bf16 && cpu::tile_weight(ByteWeightView{.codes = l.codes, .scales = l.scales}).has_value();
  }
  bool operator()(const GgufLinear&) const { return true; }
};

// Ops that take each row for itself, or, as attention over pages, each query.
template <class... Ops>
bool is_any(const BlockOp& op) {
  return (std::holds_alternative<Ops>(op) || ...);
}
bool row_by_row(const BlockOp& op) {
  return is_any<Norm, Linears, Split, HeadNorm, Rope, Attention, GatedAct, AddTo, SigmoidGate, Scale>(op);
}

}  // namespace

bool rows_alike(const Linear& linear, DType x) { return std::visit(TakesAnyRows{x}, linear); }

bool rows_alike(const ModelSpec& spec, std::span<const BlockWeights> blocks, const Ends& ends, DType compute) {
  const TakesAnyRows takes{compute};
  const Linear* head = head_of(ends);
  if (!(head ? rows_alike(*head, compute) : takes.tiles(ends.embed))) return false;
  for (int64_t layer = 0; layer < spec.layers; ++layer)
    if (!std::ranges::all_of(spec.block(layer), row_by_row)) return false;
  return std::ranges::all_of(blocks, [&](const BlockWeights& block) {
    return std::ranges::all_of(block.linears, [&](const auto& named) { return rows_alike(named.second, compute); });
  });
}

}  // namespace fewbit
