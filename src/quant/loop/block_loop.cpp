#include "src/quant/loop/block_loop.h"

#include <algorithm>

#include "formats/container.h"
#include "kernels/exec/profile_range.h"
#include "kernels/model/embed.h"
#include "kernels/statistics/gram.h"
#include "src/calib/experts.h"
#include "src/calib/observe.h"
#include "src/quant/loop/block_transforms.h"
#include "src/quant/loop/learned_rounding.h"
#include "src/quant/loop/measure.h"
#include "src/quant/rounding.h"
#include "src/run/runner.h"

namespace fewbit {

BlockLoop::BlockLoop(Exec& ex, const Checkpoint& c, const QuantPlan& plan, const Windows& windows, const QuantJob& job,
                     Journal& journal)
    : ex_(ex),
      ckpt_(c),
      plan_(plan),
      job_(job),
      journal_(journal),
      ropes_(ex, c.spec, windows.length),
      phases_(ex),
      coder_(ex, c, plan, job, phases_, windows.count > 0),
      ends_(ex, c, plan, job, phases_, windows.count > 0),
      windows_(windows.count) {
  const Tensor embedding = quantize_embedding();
  if (windows.count > 0) start_streams(windows, embedding);
}

// Its values in the compute dtype; empty where it stays as it is, or nothing runs.
Tensor BlockLoop::quantize_embedding() {
  const int64_t layer = ckpt_.spec.layers;
  std::optional<CheckpointIndex> file;
  if (journal_.sealed(layer)) file = container_safetensors.open(journal_.block_file(layer));
  ends_.begin(layer, std::move(file), false);
  const NamedLinear matrix = ends_of(ckpt_.spec).front();
  if (!plan_.find(matrix.name)) return {};
  std::map<std::string, Linear> replaced;
  ends_.quantize(
      {{.name = matrix.name, .out = Slot::x, .out_features = matrix.out, .in_features = matrix.in}},
      [](const InputRounding&) { return std::optional<InputStats>(); }, replaced);
  if (replaced.empty()) return {};
  return std::move(std::get<DenseLinear>(replaced.at(matrix.name)).weight);
}

void BlockLoop::start_streams(const Windows& w, ConstTensorView quantized_embedding) {
  check_ids(ckpt_.spec, w.ids);
  const Tensor ids = ex_.to_device(Tensor::host_from<int32_t>(DType::i32, {w.count * w.length}, w.ids));
  const Ends ends = load_ends(ex_, ckpt_, {.dtype = job_.dtype});
  const auto states = [&](ConstTensorView table) {
    Tensor x = ex_.alloc(job_.dtype, {w.count * w.length, ckpt_.spec.hidden});
    embed(ex_, ids, table, ckpt_.spec.embed_scale, x);
    return x;
  };
  quantized_.emplace(ex_, ckpt_.spec, states(quantized_embedding.data ? quantized_embedding : ends.embed.view()),
                     w.count);
  if (has(plan_.needs, Needs::cross)) full_.emplace(ex_, ckpt_.spec, states(ends.embed), w.count);
}

void BlockLoop::block(int64_t layer) {
  const ProfileRange range(("block " + std::to_string(layer)).c_str());
  if (!journal_.sealed(layer)) return quantize(layer);
  if (quantized_) replay(layer);  // data-free: nothing downstream depends on this block
}

// Takes the streams through a block that an earlier run sealed: its linears are restored where they would be quantized.
void BlockLoop::replay(int64_t layer) {
  coder_.begin(layer, container_safetensors.open(journal_.block_file(layer)), false);
  BlockWeights weights = enter(layer);
  const std::vector<BlockOp>& ops = ckpt_.spec.block(layer);
  for (size_t i = 0; i < ops.size(); ++i) {
    std::map<std::string, Linear> restored = quantize_op(layer, ops[i], weights);
    scale_kv(layer, ops[i]);
    advance(i, weights, std::move(restored));
  }
}

// Quantizes the block: at every op that has linears, observe, quantize and measure; then both streams run the op. A
// block whose rounding is learned gets its cache scales after that, from the codes that it keeps.
void BlockLoop::quantize(int64_t layer) {
  const bool learning = learns_rounding(plan_, ckpt_.spec, layer);
  coder_.begin(layer, std::nullopt, learning);
  BlockWeights weights = enter(layer);
  Tensor entering;  // the states in front of the block, which learning runs from once more
  if (learning) {
    entering = ex_.alloc(job_.dtype, quantized_->x().shape());
    ex_.copy(quantized_->x(), entering);
  }
  const std::vector<BlockOp>& ops = ckpt_.spec.block(layer);
  for (size_t i = 0; i < ops.size(); ++i) {
    std::map<std::string, Linear> replaced = quantize_op(layer, ops[i], weights);
    if (!learning) scale_kv(layer, ops[i]);
    advance(i, weights, std::move(replaced));
  }
  if (learning) learn(layer, entering, weights);
  coder_.seal(journal_);
}

// The block's weights, rewritten by the plan's transforms, with both streams in front of its first op. Transforms run
// for a sealed block too: no file holds the rewritten weights, and the unquantized stream needs them.
BlockWeights BlockLoop::enter(int64_t layer) {
  BlockWeights weights;
  if (quantized_)
    phases_.timed("load", [&] { weights = load_block(ex_, ckpt_, layer, {.dtype = job_.dtype}, nullptr); });
  if (!plan_.transforms.empty())
    coder_.rewrite(transform_block(ex_, ckpt_, plan_, layer, *quantized_, windows_, ropes_, weights, phases_));
  const std::vector<BlockOp>& ops = ckpt_.spec.block(layer);
  if (quantized_) quantized_->begin_block(ops);
  if (full_) full_->begin_block(ops);
  return weights;
}

// Quantizes (or, for a sealed block, restores) the linears of an op; what takes their place in the quantized stream,
// by relative name and without biases.
std::map<std::string, Linear> BlockLoop::quantize_op(int64_t layer, const BlockOp& op, const BlockWeights& weights) {
  if (const auto* group = std::get_if<Linears>(&op)) return quantize_group(*group);
  if (const auto* moe = std::get_if<Moe>(&op)) return quantize_experts(layer, *moe, weights);
  return {};
}

// Runs the op in both streams: the unquantized one with the weights as they were, then the quantized one with those
// that replace them. Biases stay.
void BlockLoop::advance(size_t op, BlockWeights& weights, std::map<std::string, Linear> replaced) {
  phases_.timed("forward", [&] {
    if (full_) full_->run(op, weights, ropes_);
    for (auto& [name, linear] : replaced) {
      auto& by = std::get<DenseLinear>(linear);
      auto& dense = std::get<DenseLinear>(weights.linears.at(name));
      dense.weight = std::move(by.weight);
      dense.input = by.input;
    }
    if (quantized_) quantized_->run(op, weights, ropes_);
  });
}

void BlockLoop::finish() {
  const std::vector<NamedLinear> ends = ends_of(ckpt_.spec);
  const bool some = std::any_of(ends.begin(), ends.end(), [&](const auto& l) { return plan_.find(l.name); });
  if (!some || journal_.sealed(ckpt_.spec.layers)) return;
  if (const NamedLinear& head = ends.back(); ends.size() > 1 && plan_.find(head.name)) {
    std::map<std::string, Linear> unused;
    ends_.quantize(
        {{.name = head.name, .out = Slot::x, .out_features = head.out, .in_features = head.in}},
        [&](const InputRounding& rounding) {
          std::optional<InputStats> stats;
          if (!quantized_) return stats;
          phases_.timed("observe", [&] {
            const Ends loaded = load_ends(ex_, ckpt_, {.dtype = job_.dtype});
            const auto normed = [&](const Stream& s) { return final_normed(ex_, ckpt_.spec, loaded, s.x()); };
            stats = observe_input(ex_, normed(*quantized_), full_ ? normed(*full_) : Tensor(), rounding);
          });
          return stats;
        },
        unused);
  }
  ends_.seal(journal_);
}

// The linears of a group share the statistics of its input.
std::map<std::string, Linear> BlockLoop::quantize_group(const Linears& group) {
  std::map<std::string, Linear> replaced;
  coder_.quantize(
      group.items,
      [&](const InputRounding& rounding) {
        std::optional<InputStats> stats;
        if (!quantized_) return stats;
        phases_.timed("observe", [&] {
          stats = observe_input(ex_, quantized_->input(group.in), full_ ? full_->input(group.in) : ConstTensorView{},
                                rounding);
        });
        return stats;
      },
      replaced);
  return replaced;
}

// A mixture of experts: gate and up of every expert, then every down, whose inputs the quantized gates decide.
std::map<std::string, Linear> BlockLoop::quantize_experts(int64_t layer, const Moe& op, const BlockWeights& weights) {
  std::map<std::string, Linear> replaced;
  const auto linear = [&](const std::string& name) -> const Linear& {
    const auto it = replaced.find(name);
    return it == replaced.end() ? weights.linears.at(name) : it->second;
  };
  std::optional<ExpertInputs> seen;
  if (quantized_) {
    phases_.timed("observe", [&] {
      seen.emplace(ex_, op, weights, quantized_->input(op.in), full_ ? full_->input(op.in) : ConstTensorView{});
    });
    experts_.push_back({layer, seen->tokens(), seen->starved()});
  }
  const auto stats_of = [&](auto&& ask) -> std::optional<InputStats> {
    std::optional<InputStats> stats;
    if (seen) phases_.timed("observe", [&] { stats = ask(*seen); });
    return stats;
  };
  for (int e = 0; e < op.experts; ++e)
    coder_.quantize(
        {op.of_expert(op.gate, e), op.of_expert(op.up, e)},
        [&](const InputRounding& r) { return stats_of([&](ExpertInputs& s) { return s.of_input(e, r); }); }, replaced);
  for (int e = 0; e < op.experts; ++e)
    coder_.quantize(
        {op.of_expert(op.down, e)},
        [&](const InputRounding& r) {
          return stats_of([&](ExpertInputs& s) { return s.of_activation(e, r, linear); });
        },
        replaced);
  return replaced;
}

// The scales of the layer's FP8 cache. Of a block whose codes are learned, after that.
void BlockLoop::scale_kv(int64_t layer, const BlockOp& op) {
  const auto* a = std::get_if<Attention>(&op);
  if (!a || !plan_.fp8_kv_cache) return;
  const std::string name = ckpt_.spec.prefix(layer) + attention_module(ckpt_.spec.block(layer));
  KvScales scales;
  if (coder_.restores()) {
    scales = read_kv_scales(name, a->kv_heads, coder_.restored()).value();
  } else {
    phases_.timed("observe", [&] { scales = kv_scales_for(ex_, quantized_->input(a->k), quantized_->input(a->v)); });
    for (NamedTensor& t : kv_scale_tensors(name, scales)) coder_.add(std::move(t));
  }
  kv_scales_.push_back({layer, scales.k[0], scales.v[0]});
}

// Moves the codes of the block down the gradient of its output error, then runs the quantized stream through
// the block again, from the states that entered it.
void BlockLoop::learn(int64_t layer, ConstTensorView entering, BlockWeights& weights) {
  BlockLearning job{.spec = &ckpt_.spec,
                    .layer = layer,
                    .ropes = &ropes_,
                    .weights = &weights,
                    .entering = entering,
                    .target = full_->x(),
                    .windows = windows_,
                    .seed = job_.seed,
                    .linears = {},
                    .progress = [&](double f) { tell(job_, ckpt_.spec, static_cast<double>(layer) + f); }};
  for (CodedLinear& c : coder_.coded())
    if (c.plan->recipe.learns_rounding()) job.linears.push_back({.name = c.name, .coded = &c.linear});
  phases_.timed("learn", [&] {
    if (!learn_rounding(ex_, job).changed) return;
    for (CodedLinear& c : coder_.coded()) {
      validate(c.linear);
      if (c.plan->recipe.learns_rounding()) c.record.learned = true;
    }
  });
  for (const CodedLinear& c : coder_.coded())
    std::get<DenseLinear>(weights.linears.at(c.name)).weight = values_of(ex_, c.linear, job_.dtype);
  phases_.timed("forward", [&] { ex_.copy(entering, quantized_->x()); });
  const std::vector<BlockOp>& ops = ckpt_.spec.block(layer);
  quantized_->begin_block(ops);
  for (size_t i = 0; i < ops.size(); ++i) {
    if (const auto* group = std::get_if<Linears>(&ops[i])) phases_.timed("measure", [&] { measure_learned(*group); });
    scale_kv(layer, ops[i]);
    phases_.timed("forward", [&] { quantized_->run(i, weights, ropes_); });
  }
}

// The records of the learned linears of a group on the inputs that they have now.
void BlockLoop::measure_learned(const Linears& group) {
  InputStats stats;
  for (const LinearDef& l : group.items)
    for (CodedLinear& c : coder_.coded()) {
      if (c.name != l.name || c.weight.empty()) continue;
      if (stats.gram.empty()) {
        const ConstTensorView x = quantized_->input(group.in);
        stats.tokens = x.rows();
        stats.gram = ex_.alloc_zeros(DType::f32, {x.cols(), x.cols()});
        gram(ex_, x, stats.gram);
      }
      coder_.measure_again(c, stats);
    }
}

}  // namespace fewbit
