#include "src/quant/loop/block_loop.h"

#include <algorithm>
#include <array>

#include "kernels/exec/profile_range.h"
#include "kernels/model/embed.h"
#include "src/core/parallel.h"
#include "src/model/checkpoint_parts.h"
#include "src/model/mtp.h"
#include "src/quant/loop/block_transforms.h"
#include "src/quant/loop/read_ahead.h"
#include "src/quant/plan/residual_aim.h"
#include "src/quant/plan/time_plan.h"
#include "src/ranks/exchange.h"
#include "src/run/runner.h"
#include "src/run/upload_as.h"

namespace fewbit {
namespace {

// The states' room, with a folder for what fits no memory. A rank on a machine that does not see OUT takes the
// system's.
StateRoom room_of(const QuantPlan& plan, const Journal& journal) {
  StateRoom room = plan.memory.room;
  std::error_code ec;
  if (room.scratch.empty() && std::filesystem::is_directory(journal.dir(), ec)) room.scratch = journal.dir() / "states";
  return room;
}

}  // namespace

BlockLoop::BlockLoop(Exec& ex, const Checkpoint& c, const QuantPlan& plan, const Windows& windows, const QuantJob& job,
                     Journal& journal)
    : ex_(ex),
      ckpt_(c),
      plan_(plan),
      job_(job),
      journal_(journal),
      ranks_(*job.ranks),
      ropes_(ex, c.spec, windows.length),
      phases_(ex, job.entered),
      sealed_before_(journal.sealed_blocks()),
      ahead_(ex, job.overlaps ? plan.memory.slot : 0),
      coder_(ex, c, plan, job, phases_, background_, ahead_, windows.count > 0),
      ends_(ex, c, plan, job, phases_, background_, ahead_, windows.count > 0),
      chunks_{.windows = windows.count, .length = windows.length, .at_once = chunk_tokens(ex.device().kind)},
      share_(ex, ranks_, chunks_, true),
      store_(ex, room_of(plan, journal)),
      windows_(windows),
      background_(job.overlaps, ex.on_cuda(), ex.on_cuda() ? std::min(kPackers, thread_count()) : 1) {
  const Tensor embedding = quantize_embedding();
  if (windows.count > 0) start_streams(windows, embedding);
}

// Its values in the compute dtype; empty where it stays as it is, or nothing runs.
Tensor BlockLoop::quantize_embedding() {
  ends_.begin(ckpt_.spec.layers, journal_, journal_.sealed(ckpt_.spec.layers), false);
  const NamedLinear matrix = ends_of(ckpt_.spec).front();
  if (!plan_.find(matrix.name)) return {};
  std::map<std::string, Linear> replaced;
  ends_.quantize(
      {{.name = matrix.name, .out = Slot::x, .out_features = matrix.out, .in_features = matrix.in}},
      [](const InputRounding&) { return std::optional<InputStats>(); }, &replaced);
  if (replaced.empty()) return {};
  return std::move(std::get<DenseLinear>(replaced.at(matrix.name)).weight);
}

// The embedding in the compute dtype, where a device has room for it: rows that are gathered from a file chunk by chunk
// take as long as a pass over a block. Nothing of what the blocks need is there yet.
Tensor BlockLoop::whole_embedding() {
  const NamedLinear l = ends_of(ckpt_.spec).front();
  const bool fits = l.out * l.in * bytes_of(job_.dtype) <= plan_.memory.least_device;
  if (!ex_.on_cuda() || !fits) return {};
  return ckpt_.packed(l.name) ? upload_as(ex_, ckpt_.values(l), job_.dtype)
                              : upload_stored(ex_, ckpt_.store, ckpt_.spec.embed, {l.out, l.in}, job_.dtype);
}

void BlockLoop::start_streams(const Windows& w, ConstTensorView quantized_embedding) {
  check_ids(ckpt_.spec, w.ids);
  quantized_.emplace(store_, ckpt_.spec, chunks_, job_.dtype, w.ids);
  if (has(plan_.needs, Needs::cross)) full_.emplace(store_, ckpt_.spec, chunks_, job_.dtype, w.ids);
  const bool wanted = full_ || !quantized_embedding.data;
  const Tensor whole = wanted ? whole_embedding() : Tensor();
  const auto embedded = [&](std::span<const int32_t> ids, ConstTensorView table) {
    const auto rows = static_cast<int64_t>(ids.size());
    Tensor x = ex_.alloc(job_.dtype, {rows, ckpt_.spec.width()});
    embed_streams(ex_, ckpt_.spec, ex_.to_device(Tensor::host_from<int32_t>(DType::i32, {rows}, ids)), table, x);
    return x;
  };
  for (int64_t chunk = 0; chunk < chunks_.count(); ++chunk) {
    if (!share_.mine(chunk)) continue;
    const std::span<const int32_t> ids(w.ids.data() + chunks_.begin(chunk), static_cast<size_t>(chunks_.rows(chunk)));
    std::optional<Tensor> original;
    if (wanted) original = whole ? embedded(ids, whole) : embed_rows(ex_, ckpt_, ids, job_.dtype);
    if (both(chunk)) full_->start(chunk, *original);
    if (!quantized_embedding.data) {
      quantized_->start(chunk, *original);
      continue;
    }
    quantized_->start(chunk, embedded(ids, quantized_embedding));
  }
}

void BlockLoop::block(int64_t layer) {
  const ProfileRange range(("block " + std::to_string(layer)).c_str());
  layer_ = layer;
  learning_ = false;
  const auto read = [this, layer] { read_ahead(ckpt_, layer + 1); };
  if (layer + 1 < ckpt_.spec.layers) background_.give("load", 0, read, Background::When::any_time);
  if (layer == 0) foresee_weights(layer);
  foresee_weights(layer + 1);
  if (plan_.memory.experts_in_waves) settle();  // the tensors of one block are in memory, not those of two
  if (layer >= sealed_before_) return quantize(layer);
  if (quantized_) replay(layer);  // data-free: nothing downstream depends on this block
}

// Takes the streams through a block that an earlier run sealed: its linears are restored where they would be quantized.
void BlockLoop::replay(int64_t layer) {
  coder_.begin(layer, journal_, true, false);
  enter(layer);
  for (size_t i = 0; i < ops().size(); ++i) quantize_op(i);
  const auto mixture =
      std::find_if(ops().begin(), ops().end(), [](const BlockOp& op) { return std::holds_alternative<Moe>(op); });
  std::vector<int64_t> tokens;
  pass(ops().size(), [&](size_t i, const Activations& act) {
    if (const auto* moe = std::get_if<Moe>(&ops()[i])) count_tokens(ex_, *moe, weights_, act[moe->routed()], tokens);
  });
  if (mixture != ops().end()) {
    const Moe& moe = std::get<Moe>(*mixture);
    tokens.resize(static_cast<size_t>(moe.experts));  // a rank without chunks counted none
    tokens = sum_of_all(ranks_, std::move(tokens));
    experts_.push_back({.layer = layer, .tokens = tokens, .starved = starved_of(moe, tokens)});
  }
  scale_kv();
}

// Quantizes the block: at every op that has linears, observe, quantize and measure; at its end both streams have run
// through it. A block whose rounding is learned gets its cache scales after that, from the codes that it keeps.
void BlockLoop::quantize(int64_t layer) {
  learning_ = learns_rounding(plan_, ckpt_.spec, layer);
  coder_.begin(layer, journal_, false, learning_);
  enter(layer);
  if (weighs_outputs(plan_, layer)) weigh_outputs();
  if (full_) last_look_ = last_look(ckpt_.spec, plan_, layer);
  if (learning_) quantized_->keep_entering();
  for (size_t i = 0; i < ops().size(); ++i) quantize_op(i);
  pass(ops().size());
  if (learning_) learn();
  scale_kv();
  coder_.seal(journal_);
}

// Both streams in front of the block, whose weights the plan's transforms have rewritten. Transforms run for a sealed
// block too: no file holds the rewritten weights, and the unquantized stream needs them.
void BlockLoop::enter(int64_t layer) {
  weights_ = {};
  replaced_.clear();
  summed_.clear();
  last_look_.reset();
  kv_range_ = {};
  if (!quantized_) return;
  const bool rewrites = !plan_.transforms.empty();
  const LoadOptions options{.dtype = job_.dtype, .weights = Weights::values};
  phases_.timed("load", [&] {
    weights_ = rewrites ? load_block(ex_, ckpt_, layer, options, nullptr) : load_vectors(ex_, ckpt_, layer, job_.dtype);
  });
  if (rewrites)
    coder_.rewrite(transform_block(store_, ranks_, ckpt_, plan_, layer, quantized_->x(), ropes_, weights_, phases_));
  quantized_->begin_block(ops());
  if (full_) full_->begin_block(ops());
}

// The linears' weights in the order in which the block will ask for them: an op's to be quantized, then those that a
// stream runs as they are. Where transforms rewrite the block it asks for all of them at once, which all threads bring
// sooner; a sealed one asks for none. Experts come as they lie, where the plan has room for those of the next block.
void BlockLoop::foresee_weights(int64_t layer) {
  if (layer >= ckpt_.spec.layers || layer < sealed_before_ || !plan_.transforms.empty()) return;
  const std::vector<BlockOp>& ops = ckpt_.spec.block(layer);
  const std::optional<size_t> last = full_ ? last_look(ckpt_.spec, plan_, layer) : std::nullopt;
  for (size_t i = 0; i < ops.size(); ++i) {
    const BlockOp& op = ops[i];
    std::vector<NamedLinear> run, coded;
    const auto named_of = [&](const LinearDef& l) {
      return NamedLinear{ckpt_.spec.prefix(layer) + l.name, layer, l.out_features, l.in_features, l.bias};
    };
    if (std::holds_alternative<Moe>(op)) {
      if (!quantized_ || plan_.memory.experts_ahead == 0) continue;
      for (const LinearDef& l : linears_of(op)) run.push_back(named_of(l));
      foresee_whole(ahead_, ckpt_, run, job_.dtype);
      continue;
    }
    for (const LinearDef& l : linears_of(op)) {
      const NamedLinear named = named_of(l);
      const PlannedLinear* p = plan_.find(named.name);
      const bool quantized = p && !p->keep && !p->lossless;
      if (quantized) coded.push_back(named);
      if (full_ || (quantized_ && !quantized)) run.push_back(named);
    }
    // An op's linears are coded and then run, but those that the unquantized stream runs at once at its last look.
    for (const auto* of : i == last ? std::array{&run, &coded} : std::array{&coded, &run})
      for (const NamedLinear& named : *of) foresee(ahead_, ckpt_, named);
  }
}

// Quantizes (or, for a sealed block, restores) the linears of an op.
void BlockLoop::quantize_op(size_t op) {
  if (const auto* group = std::get_if<Linears>(&ops()[op])) quantize_group(op, *group);
  if (const auto* moe = std::get_if<Moe>(&ops()[op])) quantize_experts(op, *moe);
  if (!quantized_ || (full_ && !full_ends())) return;
  // One stream, or one that is left: what takes a linear's place does so for good.
  load_biased(op);
  swap_replaced();
  replaced_.clear();
}

// What is summed of the input of a group.
InputSumsOf BlockLoop::sums_of(size_t op, const Linears& group) const {
  const LinearDef& l = group.items.front();
  InputSumsOf of{.in = l.in_features, .cross = full_.has_value()};
  if (const std::optional<float> factor = makes_good(plan_, ckpt_.spec, layer_, op)) {
    of.out = l.out_features;
    of.error_factor = kResidualShare / *factor;
  }
  return of;
}

// The linears of a group share the statistics of its input.
void BlockLoop::quantize_group(size_t op, const Linears& group) {
  const InputSumsOf of = sums_of(op, group);
  coder_.quantize(
      group.items,
      [&](const InputRounding& rounding) {
        std::optional<InputStats> stats;
        if (quantized_)
          stats = observe_input(ex_, input_of(op, group.in, of.out > 0), chunks_.tokens(), of, rounding, ranks_,
                                plan_.summed(chunks_.tokens()));
        return stats;
      },
      &replaced_);
}

bool BlockLoop::has_ends() const {
  return std::any_of(plan_.linears.begin(), plan_.linears.end(),
                     [](const PlannedLinear& p) { return p.linear.layer == kOutsideBlocks && !p.keep; });
}

bool BlockLoop::is_computed() {
  if (has_ends()) return false;
  ex_.sync();
  return true;
}

void BlockLoop::finish() {
  settle();
  if (!has_ends() || journal_.sealed(ckpt_.spec.layers)) return;
  const std::vector<NamedLinear> ends = ends_of(ckpt_.spec);
  if (const NamedLinear& head = ends.back(); ends.size() > 1 && plan_.find(head.name)) {
    const Ends normed = load_final_norm(ex_, ckpt_, job_.dtype);
    const std::vector<int64_t> features(full_ ? 2 : 1, ckpt_.spec.hidden);
    Tensor quantized, full;
    const auto states = [&](const Stream& s, int64_t chunk) {
      const Tensor x = ex_.alloc(job_.dtype, {chunks_.rows(chunk), ckpt_.spec.width()});
      s.x().get(chunks_.begin(chunk), chunks_.begin(chunk) + chunks_.rows(chunk), x);
      return final_normed(ex_, ckpt_.spec, normed, x);
    };
    const auto bring = [&](int64_t chunk) {
      quantized = states(*quantized_, chunk);
      if (!full_) return ChunkShare::Rows{quantized};
      full = both(chunk) ? states(*full_, chunk) : Tensor();
      return ChunkShare::Rows{quantized, full ? full : quantized};
    };
    const EachChunk each = [&](const auto& show) {
      share_.each(features, job_.dtype, bring, [&](int64_t chunk, const ChunkShare::Rows& rows) {
        show({rows[0], both(chunk) ? rows[1] : ConstTensorView{}});
      });
    };
    ends_.quantize(
        {{.name = head.name, .out = Slot::x, .out_features = head.out, .in_features = head.in}},
        [&](const InputRounding& rounding) {
          std::optional<InputStats> stats;
          if (!quantized_) return stats;
          phases_.timed("observe", [&] {
            stats = observe_input(ex_, each, chunks_.tokens(), {.in = head.in, .cross = full_.has_value()}, rounding,
                                  ranks_, plan_.summed(chunks_.tokens()));
          });
          return stats;
        },
        nullptr);
  }
  quantize_mtp();
  ends_.seal(journal_);
  settle();
}

// The linears of the layer that predicts further tokens, by methods that ask for no statistics.
void BlockLoop::quantize_mtp() {
  for (const std::vector<NamedLinear>& group : mtp_linears(ckpt_.spec, ckpt_.store)) {
    std::vector<LinearDef> items;
    for (const NamedLinear& l : group)
      if (plan_.find(l.name))
        items.push_back({.name = l.name, .out = Slot::x, .out_features = l.out, .in_features = l.in});
    if (!items.empty())
      ends_.quantize(
          items, [](const auto&) { return std::optional<InputStats>(); }, nullptr);
  }
}

// The largest key and value of the layer, for the scales of its FP8 cache.
void BlockLoop::watch_kv(size_t op, const Activations& act) {
  const auto* a = std::get_if<Attention>(&ops()[op]);
  if (a && a->own_keys() && plan_.fp8_kv_cache && !coder_.restores()) kv_range_.add(ex_, act[a->k], act[a->v]);
}

void BlockLoop::scale_kv() {
  const Attention* a = own_attention_of(ops());
  if (!a || !plan_.fp8_kv_cache) return;
  const std::string name = ckpt_.spec.prefix(layer_) + attention_module(ops());
  KvScales scales;
  if (coder_.restores()) {
    if (ranks_.rank() != 0) return;  // who writes the report has the file
    scales = read_kv_scales(name, a->kv_heads, coder_.restored()).value();
  } else {
    scales = kv_range_.scales(ex_, ranks_);
    for (NamedTensor& t : kv_scale_tensors(name, scales)) coder_.add(std::move(t));
  }
  kv_scales_.push_back({layer_, scales.k[0], scales.v[0]});
}

}  // namespace fewbit
