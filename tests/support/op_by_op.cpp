#include "tests/support/op_by_op.h"

#include <algorithm>

#include "kernels/model/cast.h"
#include "src/model/op_slots.h"
#include "src/run/moe.h"
#include "src/run/streamed.h"
#include "tests/support/support.h"

namespace fewbit::test {
namespace {

void round_to_bf16(Exec& ex, TensorView x) {
  const Tensor rounded = ex.alloc(DType::bf16, x.shape);
  cast(ex, x, rounded);
  cast(ex, rounded, x);
}

// Share of the entries of `a` that stand in no row of `b`.
double elsewhere(const Tensor& a, const Tensor& b) {
  const int64_t n = a.cols();
  int64_t other = 0;
  for (int64_t i = 0; i < a.numel(); ++i) {
    const int32_t* row = b.as<int32_t>() + i / n * n;
    other += std::find(row, row + n, a.as<int32_t>()[i]) == row + n;
  }
  return static_cast<double>(other) / static_cast<double>(a.numel());
}

// Keeps the keys that were chosen; attention then looks at those of the imposed pass, where there is one.
void note_keys(Exec& ex, const OpByOp* imposed, const Activations& act, OpByOp& pass) {
  if (!act.choice || act.choice->empty()) return;
  pass.keys.push_back(ex.to_host(*act.choice));
  if (!imposed) return;
  const Tensor& other = imposed->keys[pass.keys.size() - 1];
  pass.other_keys = std::max(pass.other_keys, elsewhere(pass.keys.back(), other));
  ex.copy(other, *act.choice);
}

}  // namespace

LoadOptions exact_inputs(DType dtype) { return {.dtype = dtype, .weights = Weights::values}; }

OpByOp op_by_op(Exec& ex, const Checkpoint& c, std::span<const int32_t> ids, int64_t seqs, DType dtype, bool rounds,
                const OpByOp* imposed) {
  OpByOp pass{Choices(static_cast<size_t>(c.spec.layers), std::vector<std::set<int32_t>>(ids.size()))};
  Choices& choices = pass.choices;
  const EmbeddedTokens in = embed_tokens(ex, c.spec, load_ends(ex, c, {.dtype = dtype}), ids, seqs, dtype);
  const RopeTables ropes(ex, c.spec, in.x.rows() / seqs);
  const SlotBuffers slots(ex, c.spec, in.x.rows(), dtype);
  if (rounds) round_to_bf16(ex, in.x);
  pass.states.push_back(ex.to_host(in.x));
  for (int64_t layer = 0; layer < c.spec.layers; ++layer) {
    const BlockWeights weights = load_block(ex, c, layer, exact_inputs(dtype), nullptr);
    Activations act = slots.bind(in.x, c.spec.kind(layer));
    for (const BlockOp& op : c.spec.block(layer)) {
      if (const Moe* moe = std::get_if<Moe>(&op)) {
        const Routing routing = route_tokens(ex, *moe, weights, act[moe->routed()]);
        const Tensor rows = ex.to_host(routing.rows);
        for (int e = 0; e < moe->experts; ++e)
          for (int64_t i = routing.begin[static_cast<size_t>(e)]; i < routing.begin[static_cast<size_t>(e) + 1]; ++i)
            choices[static_cast<size_t>(layer)][static_cast<size_t>(rows.as<int32_t>()[i])].insert(e);
      }
      run_op(ex, op, weights, ropes, {.seqs = seqs, .positions = in.positions, .ids = in.ids}, act);
      if (std::holds_alternative<KeyChoice>(op)) note_keys(ex, imposed, act, pass);
      for (const Slot written : slots_written(op))
        if (rounds) round_to_bf16(ex, act[written]);
    }
    pass.states.push_back(ex.to_host(in.x));
  }
  return pass;
}

std::vector<bool> same_choices(const Choices& a, const Choices& b, int64_t layers) {
  std::vector<bool> same(a.front().size(), true);
  for (size_t layer = 0; layer < static_cast<size_t>(layers); ++layer)
    for (size_t t = 0; t < same.size(); ++t) same[t] = same[t] && a[layer][t] == b[layer][t];
  return same;
}

std::vector<bool> before_the_first(std::vector<bool> same, int64_t seqs) {
  const size_t len = same.size() / static_cast<size_t>(seqs);
  for (size_t t = 0; t < same.size(); ++t) same[t] = same[t] && (t % len == 0 || same[t - 1]);
  return same;
}

Tensor rows_where(ConstTensorView x, const std::vector<bool>& take) {
  const Tensor all = to_f32(x);
  Tensor some = Tensor::host(DType::f32, {std::count(take.begin(), take.end(), true), all.cols()});
  float* to = some.as<float>();
  for (int64_t r = 0; r < all.rows(); ++r)
    if (take[static_cast<size_t>(r)]) to = std::copy_n(all.as<float>() + r * all.cols(), all.cols(), to);
  return some;
}

}  // namespace fewbit::test
