// Interpreting the op list of a block.
#include "src/run/block.h"

#include <algorithm>
#include <optional>

#include "kernels/attention/attention.h"
#include "kernels/kivi/kivi_append.h"
#include "kernels/kivi/kivi_attention.h"
#include "kernels/model/add.h"
#include "kernels/model/cast.h"
#include "kernels/model/copy_columns.h"
#include "kernels/model/embed.h"
#include "kernels/model/gated_act.h"
#include "kernels/model/hadamard.h"
#include "kernels/model/norm.h"
#include "kernels/model/rope.h"
#include "kernels/model/route.h"
#include "kernels/model/sigmoid_gate.h"
#include "kernels/products/gemm.h"
#include "kernels/recurrent/delta_rule.h"
#include "kernels/recurrent/short_conv.h"
#include "kernels/recurrent/state_scan.h"
#include "kernels/shared_keys/compress_keys.h"
#include "kernels/streams/streams.h"
#include "src/model/op_slots.h"
#include "src/run/fused.h"
#include "src/run/head.h"
#include "src/run/latent.h"
#include "src/run/moe.h"
#include "src/run/op_watch.h"
#include "src/run/paged/ragged.h"
#include "src/run/rank_sums.h"

namespace fewbit {
namespace {

const char* phase_of(const BlockOp& op) {
  if (std::holds_alternative<Linears>(op)) return "linears";
  if (attends(op) || std::holds_alternative<DeltaRule>(op) || std::holds_alternative<StateScan>(op) ||
      std::holds_alternative<KeyChoice>(op))
    return "attention";
  return std::holds_alternative<Moe>(op) ? "experts" : "other";
}

struct Interpreter {
  Exec& ex;
  const BlockWeights& weights;
  const RopeTables& ropes;
  const TokenLayout& layout;
  Activations& act;

  void operator()(const Norm& op) const {
    norm_rows(ex, act[op.in], weights.vectors.at(op.name), op.kind, op.eps, act[op.out]);
  }
  std::pair<std::vector<const Linear*>, std::vector<TensorView>> items_of(const Linears& op) const {
    std::pair<std::vector<const Linear*>, std::vector<TensorView>> items;
    for (const LinearDef& l : op.items) {
      items.first.push_back(&weights.linears.at(l.name));
      items.second.push_back(act[l.out]);
    }
    return items;
  }
  RowNorm rows_of(const Norm& op) const {
    return {.weight = weights.vectors.at(op.name), .eps = op.eps, .offset = weight_offset(op.kind)};
  }
  void operator()(const Linears& op) const {
    const auto [linears, outs] = items_of(op);
    if (!op.summed) return apply_all(ex, linears, act[op.in], outs);
    // What each rank adds stays in f32, so that the sum alone is rounded.
    for (size_t i = 0; i < linears.size(); ++i) {
      const TensorView sum = layout.ranks->room(ex, outs[i].shape);
      apply(ex, *linears[i], act[op.in], sum);
      layout.ranks->add_up(ex, sum);
      cast(ex, sum, outs[i]);
    }
  }
  void operator()(const Split& op) const {
    const int64_t step = act[op.in].cols() / op.groups;
    int64_t begin = 0;
    for (const SplitPart& p : op.parts) {
      const int64_t each = p.features / op.groups;
      copy_columns(ex, act[op.in], begin, act[p.out], p.at, each, {op.groups, step, each});
      begin += each;
    }
  }
  void operator()(const HeadNorm& op) const {
    const TensorView heads = act[op.slot].reshaped({act[op.slot].numel() / op.head_dim, op.head_dim});
    norm_rows(ex, heads, weights.vectors.at(op.name), op.kind, op.eps, heads);
  }
  void operator()(const Rope& op) const {
    for (Slot s : op.slots)
      rope(ex, act[s], layout.positions, ropes.inv_freq(op), op.head_dim, op.params.attention_scale,
           op.neighbours ? RopePairs::neighbours : RopePairs::halves);
  }
  AttentionArgs attention_args(const Attention& op) const {
    AttentionArgs args = args_of(op);
    if (!op.sinks.empty()) args.sinks = weights.vectors.at(op.sinks);
    args.turn_back = (layout.cache || layout.ragged) && layout.turned_values;  // the matrix is its own inverse
    return args;
  }
  // Over the cache, which holds the new tokens already, or over k and v where there is none.
  void attend(const Attention& op) const {
    const AttentionArgs args = attention_args(op);
    if (layout.ragged) return attend_pages(ex, act[op.q], *layout.ragged, args, act[op.out]);
    if (layout.cache) return attention_cached(ex, act[op.q], layout.positions, *layout.cache, args, act[op.out]);
    attention(ex, act[op.q], act[op.k], act[op.v], layout.seqs, args, act[op.out]);
  }
  void attend_kivi(const Attention& op) const {
    if (op.own_keys()) kivi_append(ex, act[op.k], act[op.v], layout.positions, *layout.kivi);
    kivi_attention(ex, act[op.q], layout.positions, *layout.kivi, attention_args(op), act[op.out]);
  }
  void operator()(const Attention& op) const {
    if (layout.kivi) return attend_kivi(op);
    if (layout.cache || layout.ragged) {
      const TensorView new_keys = op.own_keys() ? act[op.k] : act[op.q].row_range(0, 0);
      if (layout.turned_keys) hadamard(ex, act[op.q], new_keys, op.head_dim);
      if (layout.turned_values && op.own_keys()) hadamard(ex, act[op.v], new_keys.row_range(0, 0), op.head_dim);
      if (op.own_keys()) append_keys(ex, act[op.k], act[op.v], layout);
    }
    attend(op);
  }
  void operator()(const GatedAct& op) const {
    if (op.limit > 0) return clamped_swiglu(ex, act[op.gate], act[op.up], {op.limit, 1.f, 0.f}, act[op.out]);
    gated_act(ex, act[op.gate], act[op.up], act_kind(op.act), act[op.out]);
  }
  void operator()(const AddTo& op) const { add(ex, act[op.in], act[op.out], op.factor); }
  void operator()(const PositionScale& op) const {
    scale_by_position(ex, act[op.slot], layout.positions, op.factor, op.every, op.shift);
  }
  void operator()(const TokenInput& op) const { embed(ex, layout.ids, weights.vectors.at(op.table), 1.f, act[op.out]); }
  void operator()(const Keep&) const {}  // the slots are there
  void operator()(const Moe& op) const {
    run_moe(ex, op, weights, act[op.in], act[op.routed()], act[op.out], layout.ranks);
  }
  void operator()(const Scale& op) const {
    scale_by(ex, weights.vectors.at(small_tensors_of(op).front().key()), act[op.slot]);
  }
  void operator()(const Project& op) const {
    const ConstTensorView w = weights.vectors.at(op.name);
    if (op.groups == 1) return gemm(ex, act[op.in], w, {}, act[op.out]);
    run_groups(ex, op, weights, act[op.in], act[op.out]);
  }
  void operator()(const SigmoidGate& op) const { sigmoid_gate(ex, act[op.gate], act[op.in], act[op.out]); }
  TensorView state_of(const std::string& name) const {
    return layout.state ? layout.state->at(name).view() : TensorView{};
  }
  void operator()(const ShortConv& op) const {
    const ConstTensorView w = weights.vectors.at(op.name).view().reshaped({op.channels, op.taps});
    const ConstTensorView bias = op.bias ? weights.vectors.at(op.name + ".bias").view() : ConstTensorView{};
    short_conv(ex, act[op.in], w, bias, layout.seqs, op.silu ? ConvAct::silu : ConvAct::none, state_of(op.name),
               act[op.out]);
  }
  void operator()(const DeltaRule& op) const {
    const DeltaInputs in{.q = {act[op.q], 0},
                         .k = {act[op.k], op.k_at()},
                         .v = {act[op.v], op.v_at()},
                         .beta = act[op.beta],
                         .decay = act[op.decay],
                         .a_log = weights.vectors.at(op.a_log),
                         .dt_bias = weights.vectors.at(op.dt_bias)};
    const DeltaArgs args{.k_heads = op.k_heads, .v_heads = op.v_heads, .k_dim = op.k_dim, .v_dim = op.v_dim};
    delta_rule(ex, in, layout.seqs, args, state_of(op.a_log), act[op.out]);
  }
  void operator()(const BiasedNorm& op) const {
    const ConstTensorView bias = weights.vectors.at(op.name + ".bias");
    layer_norm(ex, act[op.slot], weights.vectors.at(op.name), &bias, op.eps, act[op.slot]);
  }
  void operator()(const KeyChoice& op) const { run_key_choice(ex, op, layout, act); }
  void operator()(const CompressKeys& op) const {
    const CompressInputs in{.offer = act[op.k],
                            .gate = act[op.gate],
                            .ape = weights.vectors.at(op.name + ".ape"),
                            .norm = weights.vectors.at(op.name + ".norm"),
                            .inv_freq = ropes.inv_freq(op.rope)};
    compress_keys(ex, in, layout.positions, layout.seqs, {.every = op.every, .overlap = op.overlap, .eps = op.eps},
                  state_of(op.name), act[op.out]);
  }
  void operator()(const SharedKeyAttention& op) const { run_shared_key_attention(ex, op, weights, layout, act); }
  void operator()(const ReadStreams& op) const {
    const auto tensor = [&](const char* part) -> ConstTensorView { return weights.vectors.at(op.name + part); };
    read_streams(ex, act[op.in], {.fn = tensor("_fn"), .base = tensor("_base"), .scale = tensor("_scale")},
                 {.streams = op.streams, .norm_eps = op.norm_eps, .eps = op.eps, .rounds = op.rounds}, act[op.out],
                 act[op.mix]);
  }
  void operator()(const WriteStreams& op) const { write_streams(ex, act[op.in], act[op.mix], act[op.out]); }
  void operator()(const TokenRoute& op) const {
    const Room room = room_of(ex, weights, op.router, 0, DType::f32, {act[op.in].rows(), op.experts});
    const TensorView logits = room.rows;
    gemm(ex, act[op.in], weights.vectors.at(op.router), {}, logits);
    if (layout.ranks) layout.ranks->agree(ex, logits);
    token_route(ex, logits, weights.vectors.at(op.table), layout.ids, {op.renormalise, op.scaling}, act[op.out]);
  }
  void operator()(const LatentAttention& op) const { run_latent_attention(ex, op, weights, layout, act); }
  void operator()(const StateScan& op) const {
    const ScanInputs in{.x = act[op.in],
                        .dt = act[op.dt],
                        .a_log = weights.vectors.at(op.a_log),
                        .dt_bias = weights.vectors.at(op.dt_bias),
                        .d = weights.vectors.at(op.d)};
    const ScanArgs args{.heads = op.heads, .groups = op.groups, .head_dim = op.head_dim, .state = op.state};
    state_scan(ex, in, layout.seqs, args, state_of(op.a_log), act[op.out]);
  }
};

// Ops that do the work of several. Each is told the ops from its own on, and says how many of them are done: 0 where
// nothing was.

// A linear whose output is only added to the residual stream.
bool only_added(const BlockOp& op, const BlockOp& next) {
  const Linears* linears = std::get_if<Linears>(&op);
  const AddTo* add = std::get_if<AddTo>(&next);
  return linears && add && add->factor == 1 && !linears->summed && linears->items.size() == 1 &&
         linears->items[0].out == add->in;
}

// Such a linear and the addition at once where its kernel can. The slot between them is left unwritten; nothing reads
// it again before another op writes it.
size_t run_added(const Interpreter& in, std::span<const BlockOp> ops) {
  if (!only_added(ops[0], ops[1])) return 0;
  const Linears& linears = std::get<Linears>(ops[0]);
  return apply_added(in.ex, in.weights.linears.at(linears.items[0].name), in.act[linears.in],
                     in.act[std::get<AddTo>(ops[1]).out])
             ? 2
             : 0;
}

bool read_later(std::span<const BlockOp> ops, Slot slot) {
  const auto has = [slot](const std::vector<Slot>& slots) {
    return std::find(slots.begin(), slots.end(), slot) != slots.end();
  };
  for (const BlockOp& op : ops) {
    if (has(slots_read(op))) return true;
    if (has(slots_written(op))) return false;
  }
  return false;
}

constexpr int64_t kFewRows = 16;  // of a decode step

// A norm whose output goes to the next op's linears alone: of a decode step, or where the linears quantize it.
size_t run_normed(const Interpreter& in, std::span<const BlockOp> ops) {
  const Norm* norm = std::get_if<Norm>(&ops[0]);
  const Linears* linears = std::get_if<Linears>(&ops[1]);
  if (!norm || !linears || norm->kind == NormKind::layer || linears->summed || linears->in != norm->out ||
      norm->in == norm->out || read_later(ops.subspan(2), norm->out))
    return 0;
  const auto [items, outs] = in.items_of(*linears);
  if (in.act[norm->in].rows() > kFewRows && !take_norm(items)) return 0;
  apply_all_normed(in.ex, items, in.act[norm->in], in.rows_of(*norm), in.act[norm->out], outs);
  return 2;
}

// Those that kernels which activate as well know.
bool is_sigmoid_gate(Activation act) { return act == Activation::silu || act == Activation::gelu_tanh; }

// A gated activation whose output goes to the next op's linear alone, of many rows; with the addition of what that
// makes.
size_t run_gated(const Interpreter& in, std::span<const BlockOp> ops) {
  const GatedAct* gated = std::get_if<GatedAct>(&ops[0]);
  const Linears* linears = std::get_if<Linears>(&ops[1]);
  if (!gated || !linears || gated->limit > 0 || !is_sigmoid_gate(gated->act) || linears->summed ||
      linears->items.size() != 1 || linears->in != gated->out || in.act[gated->out].rows() <= kFewRows ||
      read_later(ops.subspan(2), gated->out))
    return 0;
  const LinearDef& item = linears->items[0];
  const auto apply = [&](TensorView y, bool add) {
    return apply_gated(in.ex, in.weights.linears.at(item.name), in.act[gated->gate], in.act[gated->up],
                       act_kind(gated->act), in.act[gated->out], y, add);
  };
  if (ops.size() > 2 && only_added(ops[1], ops[2]) && apply(in.act[std::get<AddTo>(ops[2]).out], true)) return 3;
  return apply(in.act[item.out], false) ? 2 : 0;
}

// Experts whose sum is only added to the residual stream, of a few tokens; with the norm that they read.
size_t run_moe_and_add(const Interpreter& in, std::span<const BlockOp> ops) {
  const Norm* norm = std::get_if<Norm>(&ops[0]);
  const size_t first = norm ? 1 : 0;
  const Moe* moe = ops.size() < first + 2 ? nullptr : std::get_if<Moe>(&ops[first]);
  const AddTo* add = moe ? std::get_if<AddTo>(&ops[first + 1]) : nullptr;
  if (!add || add->factor != 1 || add->in != moe->out || add->out == moe->in ||
      read_later(ops.subspan(first + 2), moe->out))
    return 0;
  const TensorView x = in.act[moe->in], sum = in.act[add->out];
  const auto run = [&] {
    if (!norm) return run_moe_added(in.ex, *moe, in.weights, x, in.act[moe->routed()], sum, in.layout.ranks);
    return norm->kind != NormKind::layer && norm->in != norm->out && norm->out == moe->in && moe->in == moe->routed() &&
           run_normed_moe_added(in.ex, in.rows_of(*norm), *moe, in.weights, in.act[norm->in], x, sum, in.layout.ranks);
  };
  return run() ? first + 2 : 0;
}

// The norms of an attention's heads that the ops begin with, where they are two RMS norms alike.
std::optional<HeadNorms> head_norms(const Interpreter& in, std::span<const BlockOp> ops, const Attention& op) {
  const HeadNorm *q = std::get_if<HeadNorm>(&ops[0]), *k = std::get_if<HeadNorm>(&ops[1]);
  if (!q || !k || q->slot != op.q || k->slot != op.k || q->head_dim != op.head_dim || k->head_dim != op.head_dim ||
      q->kind == NormKind::layer || q->kind != k->kind || q->eps != k->eps)
    return std::nullopt;
  return HeadNorms{.q = in.weights.vectors.at(q->name),
                   .k = in.weights.vectors.at(k->name),
                   .eps = q->eps,
                   .offset = weight_offset(q->kind)};
}

// RoPE of q and k, with norms of their heads before it, before attention over a cache.
size_t run_rope_append(const Interpreter& in, std::span<const BlockOp> ops) {
  const size_t first = std::holds_alternative<HeadNorm>(ops[0]) ? 2 : 0;
  if (ops.size() < first + 2) return 0;
  const Rope* rope = std::get_if<Rope>(&ops[first]);
  const Attention* op = std::get_if<Attention>(&ops[first + 1]);
  if (!rope || !op || (!in.layout.cache && !in.layout.ragged) || rope->slots != std::vector<Slot>{op->q, op->k} ||
      rope->neighbours || rope->head_dim != op->head_dim || !op->own_keys())
    return 0;
  const std::optional<HeadNorms> norms = first == 0 ? HeadNorms{} : head_norms(in, ops, *op);
  if (!norms) return 0;
  append_and_attend(in.ex, in.act[op->q], in.act[op->k], in.act[op->v], *norms,
                    {.inv_freq = in.ropes.inv_freq(*rope),
                     .attention_scale = rope->params.attention_scale,
                     .hadamard = in.layout.turned_keys,
                     .turn_values = in.layout.turned_values},
                    in.layout, in.attention_args(*op), in.act[op->out]);
  return first + 2;
}

// The linear whose weights latent attention takes instead of its output: nothing is to be done.
size_t run_absorbed(const Interpreter& in, std::span<const BlockOp> ops) {
  const Linears* linears = std::get_if<Linears>(&ops[0]);
  return linears && absorbs_weights(in.layout) && is_absorbed(*linears, ops.subspan(1)) ? 1 : 0;
}

// Runs the first of the ops, with those behind it that one kernel does along; how many that were.
size_t run_first(const Interpreter& in, std::span<const BlockOp> ops) {
  if (ops.size() > 1)
    for (const auto& several : {run_absorbed, run_added, run_normed, run_gated, run_moe_and_add, run_rope_append})
      if (const size_t done = several(in, ops)) return done;
  if (!run_by_sequence(in.ex, ops[0], in.weights, in.ropes, in.layout, in.act)) std::visit(in, ops[0]);
  return 1;
}

}  // namespace

AttentionArgs args_of(const Attention& op) {
  return {.heads = op.heads,
          .kv_heads = op.kv_heads,
          .head_dim = op.head_dim,
          .scale = op.scale,
          .window = op.window,
          .softcap = op.softcap,
          .chunk = op.chunk};
}

ActKind act_kind(Activation act) {
  switch (act) {
    case Activation::silu:
      return ActKind::silu;
    case Activation::gelu_tanh:
      return ActKind::gelu_tanh;
    case Activation::relu:
      return ActKind::relu;
    case Activation::none:
      break;
  }
  return ActKind::none;
}

void norm_rows(Exec& ex, ConstTensorView x, ConstTensorView weight, NormKind kind, float eps, TensorView y) {
  if (kind == NormKind::layer) return layer_norm(ex, x, weight, nullptr, eps, y);
  rms_norm(ex, x, weight, eps, weight_offset(kind), y);
}

void run_op(Exec& ex, const BlockOp& op, const BlockWeights& w, const RopeTables& ropes, const TokenLayout& layout,
            Activations& act) {
  std::visit(Interpreter{ex, w, ropes, layout, act}, op);
}

void run_block(Exec& ex, const std::vector<BlockOp>& block, const BlockWeights& w, const RopeTables& ropes,
               const TokenLayout& layout, Activations& act, PhaseClock* clock) {
  if (!clock) return run_block(ex, block, w, ropes, layout, act, std::function<void(std::span<const BlockOp>)>{});
  run_block(ex, block, w, ropes, layout, act, [&](std::span<const BlockOp> ops) {
    // Of several the linears or the attention, whichever is among them.
    const char* phase = phase_of(ops[0]);
    for (const BlockOp& op : ops)
      if (phase == std::string_view("other")) phase = phase_of(op);
    clock->mark(phase);
  });
}

void run_block(Exec& ex, const std::vector<BlockOp>& block, const BlockWeights& w, const RopeTables& ropes,
               const TokenLayout& layout, Activations& act,
               const std::function<void(std::span<const BlockOp>)>& watch) {
  const Interpreter in{ex, w, ropes, layout, act};
  for (std::span<const BlockOp> ops = block; !ops.empty();) {
    const size_t done = run_first(in, ops);
    if (watch) watch(ops.first(done));
    ops = ops.subspan(done);
  }
}

}  // namespace fewbit
