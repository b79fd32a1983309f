#include "src/quant/loop/learn/block_tape.h"

#include <algorithm>

#include "kernels/attention/attention_grad.h"
#include "kernels/model/add.h"
#include "kernels/model/cast.h"
#include "kernels/model/copy_columns.h"
#include "kernels/model/gated_act_grad.h"
#include "kernels/model/norm_grad.h"
#include "kernels/model/rope.h"
#include "kernels/products/gemm.h"
#include "src/model/op_slots.h"

namespace fewbit {
namespace {

// The slots whose content an op's gradient depends on.
std::vector<Slot> slots_remembered(const BlockOp& op) {
  if (std::holds_alternative<Rope>(op) || std::holds_alternative<AddTo>(op) || std::holds_alternative<Split>(op))
    return {};
  return slots_read(op);
}

TensorView rows_of(const Tensor& t, TensorView like) { return {t.view().data, t.dtype(), like.shape, t.device()}; }

}  // namespace

namespace {

std::string_view without_gradient(const BlockOp& op) {
  const auto* split = std::get_if<Split>(&op);
  const auto moved = [](const SplitPart& p) { return p.at != 0; };
  if (split && (split->groups > 1 || std::any_of(split->parts.begin(), split->parts.end(), moved)))
    return "a linear whose outputs are split head by head";
  if (const auto* a = std::get_if<Attention>(&op))
    return !a->sinks.empty() ? "sinks" : a->chunk > 0 ? "chunks" : !a->own_keys() ? "the keys of another layer" : "";
  if (const auto* n = std::get_if<Norm>(&op)) return n->kind == NormKind::layer ? "norms that take a mean away" : "";
  if (const auto* add = std::get_if<AddTo>(&op)) return add->factor != 1 ? "a factor on what is added" : "";
  if (const auto* g = std::get_if<GatedAct>(&op))
    return g->limit > 0 || (g->act != Activation::silu && g->act != Activation::gelu_tanh)
               ? "an activation of another kind than silu and gelu"
               : "";
  if (std::holds_alternative<PositionScale>(op)) return "queries scaled by position";
  if (std::holds_alternative<SigmoidGate>(op)) return "a gate on the outputs of attention";
  if (std::holds_alternative<Scale>(op)) return "a learned scale";
  return "";
}

// The ops of which no parameter makes a difference, those that say most of a block first.
template <class... Ops>
std::string_view first_of(const std::vector<BlockOp>& ops, const std::pair<Ops*, std::string_view>&... kinds) {
  std::string_view found;
  const auto look = [&]<class Op>(const std::pair<Op*, std::string_view>& kind) {
    if (std::any_of(ops.begin(), ops.end(), [](const BlockOp& op) { return std::holds_alternative<Op>(op); }))
      found = kind.second;
    return !found.empty();
  };
  (look(kinds) || ...);
  return found;
}

template <class Op>
std::pair<Op*, std::string_view> kind(std::string_view words) {
  return {nullptr, words};
}

}  // namespace

std::string_view without_gradient(const std::vector<BlockOp>& ops) {
  const std::string_view found = first_of(
      ops, kind<Moe>("a mixture of experts"), kind<DeltaRule>("a delta rule"), kind<StateScan>("a state space"),
      kind<ShortConv>("a short convolution"), kind<SharedKeyAttention>("attention over shared keys"),
      kind<CompressKeys>("attention over shared keys"), kind<ReadStreams>("several residual streams"),
      kind<WriteStreams>("several residual streams"), kind<LatentAttention>("latent attention"),
      kind<KeyChoice>("a choice of keys"), kind<TokenInput>("what a token alone gives to a layer"),
      kind<TokenRoute>("a route by token"), kind<Keep>("keys and values that later layers read"),
      kind<BiasedNorm>("a norm with a bias"), kind<Project>("a matrix outside of every recipe"));
  if (!found.empty()) return found;
  for (const BlockOp& op : ops)
    if (const std::string_view words = without_gradient(op); !words.empty()) return words;
  return "";
}

bool has_gradient(const std::vector<BlockOp>& ops) { return without_gradient(ops).empty(); }

BlockTape::BlockTape(Exec& ex, const ModelSpec& spec, int64_t layer, int64_t seqs, int64_t len)
    : ex_(ex),
      ops_(spec.block(layer)),
      kind_(spec.kind(layer)),
      len_(len),
      values_(ex, spec, seqs * len, DType::f32),
      gradients_(ex, spec, seqs * len, DType::f32) {
  FEWBIT_ASSERT(has_gradient(ops_));
  const int64_t tokens = seqs * len;
  x_ = ex.alloc(DType::f32, {tokens, spec.hidden});
  Tensor positions = Tensor::host(DType::i32, {tokens});
  for (int64_t t = 0; t < tokens; ++t) positions.as<int32_t>()[t] = static_cast<int32_t>(t % len);
  positions_ = ex.to_device(positions);
  for (size_t i = 0; i < ops_.size(); ++i) {
    for (const Slot s : slots_remembered(ops_[i]))
      seen_[{i, s}] = ex.alloc(DType::f32, {tokens, s == Slot::x ? spec.hidden : slot_features(spec, ops_, s)});
    if (const Rope* rope = std::get_if<Rope>(&ops_[i])) {
      std::vector<float> negated(rope->params.table(len));
      for (float& f : negated) f = -f;
      inverse_rope_[i] =
          ex.to_device(Tensor::host_from<float>(DType::f32, {static_cast<int64_t>(negated.size())}, negated));
    }
  }
}

void BlockTape::remember(size_t op, Slot s) { ex_.copy(now_[s], rows_of(seen_.at({op, s}), now_[s])); }

void BlockTape::run(const BlockWeights& weights, const RopeTables& ropes, int64_t seqs) {
  seqs_ = 0;  // nothing recorded
  now_ = values_.bind(states(seqs), kind_);
  const TokenLayout layout{
      .seqs = seqs,
      .positions = positions_.view().row_range(0, seqs * len_),
      .cache = nullptr,
  };
  run_block(ex_, ops_, weights, ropes, layout, now_);
}

void BlockTape::record(const BlockWeights& weights, const RopeTables& ropes, int64_t seqs) {
  seqs_ = seqs;
  now_ = values_.bind(states(seqs), kind_);
  const TokenLayout layout{
      .seqs = seqs,
      .positions = positions_.view().row_range(0, seqs * len_),
      .cache = nullptr,
  };
  for (size_t i = 0; i < ops_.size(); ++i) {
    for (const Slot s : slots_remembered(ops_[i])) remember(i, s);
    run_op(ex_, ops_[i], weights, ropes, layout, now_);
  }
}

// One op at a time from the end: takes the gradient of what the op wrote, leaves that of what it read.
// `known` says which slots hold a gradient now; a second reader of a slot adds to what the first one left.
struct BlockTape::BackwardPass {
  BlockTape& tape;
  const BlockWeights& weights;
  const std::map<std::string, Tensor>& wanted;
  Activations grad;
  ShowOutputs show;
  std::array<bool, kSlots> known{};
  size_t index = 0;              // the op at hand
  std::optional<size_t> last{};  // the one that needs no gradient of its input any more; none: all do

  Exec& ex() const { return tape.ex_; }
  TensorView seen(Slot s) const {
    const TensorView like = s == Slot::x ? tape.states(tape.seqs_) : tape.now_[s];
    return rows_of(tape.seen_.at({index, s}), like);
  }
  bool& knows(Slot s) { return known[static_cast<size_t>(s)]; }
  // Takes the gradient of a slot that the op overwrote: what stood there before is another value.
  TensorView take(Slot s) {
    FEWBIT_ASSERT(knows(s));
    knows(s) = false;
    return grad[s];
  }
  // Announces a contribution to a slot's gradient: the factor of what is there.
  float leave(Slot s) { return std::exchange(knows(s), true) ? 1.f : 0.f; }

  void operator()(const Norm& op) {
    const TensorView dy = take(op.out);
    const float beta = leave(op.in);
    rms_norm_grad(ex(), seen(op.in), weights.vectors.at(op.name), op.eps, weight_offset(op.kind), dy, beta,
                  grad[op.in]);
  }
  void operator()(const Linears& op) {
    for (const LinearDef& l : op.items) {
      const TensorView dy = take(l.out);
      if (show) show(l, dy);
      if (const auto it = wanted.find(l.name); it != wanted.end())
        matmul(ex(),
               {.a = mat<float>(dy), .b = mat<float>(seen(op.in)), .c = mat<float>(it->second), .ta = Trans::yes});
      if (index == last) continue;
      const float beta = leave(op.in);
      matmul(ex(), {.a = mat<float>(dy),
                    .b = mat<float>(std::get<DenseLinear>(weights.linears.at(l.name)).weight),
                    .c = mat<float>(grad[op.in]),
                    .beta = beta});
    }
  }
  void operator()(const Split& op) {
    FEWBIT_ASSERT(leave(op.in) == 0);
    int64_t begin = 0;
    for (const SplitPart& p : op.parts) {
      copy_columns(ex(), take(p.out), 0, grad[op.in], begin, p.features);
      begin += p.features;
    }
  }
  void operator()(const HeadNorm& op) {
    const TensorView x = seen(op.slot), d = grad[op.slot];
    const Shape heads{d.numel() / op.head_dim, op.head_dim};
    FEWBIT_ASSERT(knows(op.slot));
    rms_norm_grad(ex(), x.reshaped(heads), weights.vectors.at(op.name), op.eps, weight_offset(op.kind),
                  d.reshaped(heads), 0.f, d.reshaped(heads));
  }
  void operator()(const Rope& op) {
    const ConstTensorView positions = tape.positions_.view().row_range(0, grad[Slot::x].rows());
    for (const Slot s : op.slots) {
      FEWBIT_ASSERT(knows(s));
      rope(ex(), grad[s], positions, tape.inverse_rope_.at(index), op.head_dim, op.params.attention_scale,
           op.neighbours ? RopePairs::neighbours : RopePairs::halves);
    }
  }
  void operator()(const Attention& op) {
    const TensorView dy = take(op.out);
    for (const Slot s : {op.q, op.k, op.v}) FEWBIT_ASSERT(leave(s) == 0);
    attention_grad(ex(), seen(op.q), seen(op.k), seen(op.v), tape.seqs_, args_of(op), dy,
                   {.q = grad[op.q], .k = grad[op.k], .v = grad[op.v]});
  }
  void operator()(const GatedAct& op) {
    const TensorView dy = take(op.out);
    for (const Slot s : {op.gate, op.up}) FEWBIT_ASSERT(leave(s) == 0);
    gated_act_grad(ex(), seen(op.gate), seen(op.up), act_kind(op.act), dy, grad[op.gate], grad[op.up]);
  }
  void operator()(const AddTo& op) {
    FEWBIT_ASSERT(knows(op.out));
    if (leave(op.in) == 0)
      ex().copy(grad[op.out], grad[op.in]);
    else
      add(ex(), grad[op.out], grad[op.in]);
  }
  template <class Op>
  void operator()(const Op&) {
    bug("an op without a way back, which has_gradient() rules out");
  }
};

void BlockTape::walk_back(BackwardPass& pass) {
  FEWBIT_ASSERT(seqs_ > 0 && pass.grad[Slot::x].rows() == seqs_ * len_);
  pass.knows(Slot::x) = true;
  for (size_t i = ops_.size(); i-- > pass.last.value_or(0);) {
    pass.index = i;
    std::visit(pass, ops_[i]);
  }
}

void BlockTape::backward(const BlockWeights& weights, TensorView output_grad,
                         const std::map<std::string, Tensor>& grads) {
  BackwardPass pass{
      .tape = *this, .weights = weights, .wanted = grads, .grad = gradients_.bind(output_grad, kind_), .show = nullptr};
  const auto wants = [&](const BlockOp& op) {
    const std::vector<LinearDef> linears = linears_of(op);
    return std::any_of(linears.begin(), linears.end(), [&](const LinearDef& l) { return grads.count(l.name) > 0; });
  };
  pass.last = static_cast<size_t>(std::find_if(ops_.begin(), ops_.end(), wants) - ops_.begin());
  walk_back(pass);
}

void BlockTape::backward_through(const BlockWeights& weights, TensorView grad, const ShowOutputs& show) {
  const std::map<std::string, Tensor> none;
  BackwardPass pass{
      .tape = *this, .weights = weights, .wanted = none, .grad = gradients_.bind(grad, kind_), .show = show};
  walk_back(pass);
}

BlockWeights in_f32(Exec& ex, const BlockWeights& weights) {
  const auto converted = [&](ConstTensorView from) {
    Tensor t = ex.alloc(DType::f32, from.shape);
    cast(ex, from, t);
    return t;
  };
  BlockWeights w;
  for (const auto& [name, linear] : weights.linears) {
    const DenseLinear& dense = std::get<DenseLinear>(linear);
    w.linears.emplace(
        name, DenseLinear{.weight = converted(dense.weight), .bias = dense.bias ? converted(dense.bias) : Tensor()});
  }
  for (const auto& [name, vector] : weights.vectors) w.vectors.emplace(name, converted(vector));
  return w;
}

}  // namespace fewbit
